// Package api is the HTTP surface of helmdeck: packs, jobs, events, dead
// letters, pools, artifacts, health, metrics and the OpenAPI description.
//
// It decodes, authorises, calls a service and encodes; the rules of jobs live
// in pkg/jobs, those of artifacts in pkg/artifacts. What else it needs stands
// behind the small ports of ports.go, implemented over the bus. The bodies are
// the types of pkg/client, so that the two cannot drift.
//
// The package has more files than most: one for each noun of the surface.
// routes.go is the one table of what is served, to whom, and how it is
// described.
package api
