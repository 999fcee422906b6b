// Command helmdeck is the operator's and the caller's command line; helmdeck
// up runs the whole product in one process.
package main

import (
	"os"

	"github.com/helmdeck/helmdeck/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
