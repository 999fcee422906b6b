// Package api is the HTTP surface of helmdeck: packs, jobs, events, dead
// letters, pools, artifacts, health, metrics and the OpenAPI description.
//
// It decodes, authorises, calls a service and encodes; the rules of jobs live
// in pkg/jobs, those of artifacts in pkg/artifacts. What else it needs stands
// behind the small ports of ports.go, implemented over the bus.
package api
