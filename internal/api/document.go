package api

import "github.com/helmdeck/helmdeck/pkg/packs"

// Document is the OpenAPI document of an API that offers these packs, as
// GET /api/v1/openapi.json answers it, without a server.
func Document(version string, offered Packs) ([]byte, error) {
	a := &API{cfg: Config{Version: version, Packs: offered, Unavailable: func(packs.Info) string { return "" }}}
	return a.describe()
}
