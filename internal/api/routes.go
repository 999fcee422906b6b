package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"time"

	"github.com/helmdeck/helmdeck/internal/api/openapi"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// route is one method of one path: what it is, who may use it, what serves it.
type route struct {
	openapi.Operation
	// guarded routes check the caller's right themselves.
	guarded bool
	serve   func(*exchange, *http.Request) error
}

// routes is the table of everything that is served.
func (a *API) routes() []*route {
	var all []*route
	all = append(all, a.packRoutes()...)
	all = append(all, a.jobRoutes()...)
	all = append(all, a.scheduleRoutes()...)
	all = append(all, a.limitRoutes()...)
	all = append(all, a.deadRoutes()...)
	all = append(all, a.artifactRoutes()...)
	all = append(all, a.poolRoutes()...)
	all = append(all, a.webhookRoutes()...)
	all = append(all, a.auditRoutes()...)
	return append(all, a.operateRoutes()...)
}

const (
	get  = http.MethodGet
	post = http.MethodPost
	ok   = http.StatusOK
	took = http.StatusAccepted
)

func query(name, kind, description string) openapi.Param {
	return openapi.Param{Name: name, In: "query", Type: kind, Description: description}
}

var (
	waitParam = query("wait", "integer", "Seconds to wait for the result, 0 to 900; 0 answers at once.")
	prefer    = openapi.Param{Name: "Prefer", In: "header", Description: "wait=N or respond-async (RFC 7240); ?wait=N comes first."}
	keyParam  = openapi.Param{Name: "Idempotency-Key", In: "header",
		Description: "Up to 256 bytes of your choice. The same key and call give the same job; the same key with another call is 409 idempotency_conflict."}
	limitParam  = query("limit", "integer", "Items on a page, 1 to 200; 50 by default.")
	cursorParam = query("cursor", "", "next_cursor of the page before.")
	jobAnswer   = openapi.Answer{Status: took, Description: "Accepted; Location is where to follow the job.", Body: jobs.Job{}}
)

func (a *API) packRoutes() []*route {
	run := openapi.Operation{
		Method: post, Path: "/api/v1/packs/{name}", ID: "run_pack", Tag: "packs", Scope: runPacks,
		Summary: "Run a pack and wait for its result",
		Description: "The body is the pack's input. Waits 60 s unless told otherwise. When the wait ends first the answer is 202 with the job record, " +
			"and the job goes on; it also goes on when the client hangs up, unless cancel_on_disconnect says otherwise. " +
			"A failed job answers with the status of its code and its job_id.",
		Params: []openapi.Param{waitParam, prefer, keyParam,
			query("cancel_on_disconnect", "boolean", "Cancel the job when the client hangs up during the wait.")},
		Body: map[string]any{}, BodyOptional: true,
		Answers: []openapi.Answer{{Status: ok, Description: "The job succeeded.", Body: client.Result{}}, jobAnswer},
	}
	runVersion := run
	runVersion.Path, runVersion.ID, runVersion.Summary = "/api/v1/packs/{name}/{version}", "run_pack_version", "Run a version of a pack and wait for its result"
	one := []openapi.Answer{{Status: ok, Description: "The pack.", Body: client.Pack{}}}
	return []*route{
		{openapi.Operation{Method: get, Path: "/api/v1/packs", ID: "list_packs", Tag: "packs", Scope: readPacks,
			Summary: "List the packs with their schemas",
			Answers: []openapi.Answer{{Status: ok, Description: "The newest version of every pack, by name.", Body: []client.Pack{}}},
		}, false, a.listPacks},
		{openapi.Operation{Method: get, Path: "/api/v1/packs/{name}", ID: "show_pack", Tag: "packs", Scope: readPacks,
			Summary: "Show the newest version of a pack", Answers: one}, false, a.showPack},
		{openapi.Operation{Method: get, Path: "/api/v1/packs/{name}/{version}", ID: "show_pack_version", Tag: "packs", Scope: readPacks,
			Summary: "Show a version of a pack", Description: `The version is "v<n>" or "latest".`, Answers: one}, false, a.showPack},
		{run, false, a.runPack},
		{runVersion, false, a.runPack},
	}
}

func (a *API) jobRoutes() []*route {
	const one = "/api/v1/jobs/{id}"
	op := func(method, path, id, scope, summary string) openapi.Operation {
		return openapi.Operation{Method: method, Path: path, ID: id, Tag: "jobs", Scope: scope, Summary: summary}
	}
	submit := op(post, "/api/v1/jobs", "submit_job", runPacks, "Submit a job")
	submit.Description = "Answers 202 once the bus has the job safe. Every fault of the body and of the pack's input is told at once."
	submit.Params, submit.Body, submit.Answers = []openapi.Param{keyParam}, jobs.Request{}, []openapi.Answer{jobAnswer}

	batch := op(post, "/api/v1/jobs/batch", "submit_jobs", runPacks, "Submit up to 1,000 jobs")
	batch.Description = "Each is answered on its own, with its record or its error, in order; some may be refused while others run. " +
		"The Idempotency-Key covers the batch: the same one gives the same jobs. An item may have an idempotency_key of its own. The body may have 32 MiB."
	batch.Params, batch.Body = []openapi.Param{keyParam}, client.BatchRequest{}
	batch.Answers = []openapi.Answer{{Status: ok, Description: "What became of each.", Body: client.BatchResult{}}}

	list := op(get, "/api/v1/jobs", "list_jobs", readPacks, "List jobs, newest first")
	list.Params = []openapi.Param{
		query("state", "", "scheduled, queued, running, retrying, succeeded, failed or cancelled."),
		query("pack", "", "Name of the pack."), query("pool", "", "Name of the pool."),
		query("label", "", "key=value, or key alone for any value."),
		query("since", "", "Created at or after this time (RFC 3339)."), query("until", "", "Created before this time (RFC 3339)."),
		query("parent", "", "Id of the parent job."), query("schedule", "", "Id of the schedule."), limitParam, cursorParam,
	}
	list.Answers = []openapi.Answer{{Status: ok, Description: "One page.", Body: client.JobList{}}}

	show := op(get, one, "show_job", readPacks, "Show the record of a job")
	show.Answers = []openapi.Answer{{Status: ok, Description: "The record.", Body: jobs.Job{}}}

	result := op(get, one+"/result", "job_result", readPacks, "Fetch the result of a job, or wait for it")
	result.Params = []openapi.Param{waitParam, prefer}
	result.Description = "Does not wait unless asked. A failed job answers with the status of its code."
	result.Answers = []openapi.Answer{{Status: ok, Description: "The job succeeded.", Body: client.Result{}}, jobAnswer}

	events := op(get, one+"/events", "job_events", readPacks, "Follow a job by server-sent events")
	events.Description = "Begins at the first event and ends after the terminal one. id is a cursor, event the CloudEvents type, " +
		"data the CloudEvent. A silent stream sends a comment every 15 s. Answers 204 when nothing can come after the cursor."
	events.Params = []openapi.Param{
		{Name: "Last-Event-ID", In: "header", Description: "Resume after this event."},
		query("after", "", "The same for clients that cannot set headers."),
	}
	events.Answers = []openapi.Answer{{Status: ok, Description: "The stream.", Type: "text/event-stream"},
		{Status: http.StatusNoContent, Description: "The job has ended and nothing follows."}}

	logs := op(get, one+"/logs", "job_logs", readPacks, "Read the lines a job logged")
	logs.Description = "Plain text, or server-sent events when Accept names text/event-stream: \"log\" with lines, \"end\" when nothing more comes. " +
		"A stream that breaks off without \"end\" is resumed after the last id. A line in brackets, or missed in an event, tells of lines that are no longer kept; " +
		"without follow one answer holds 16 MiB and says how to go on."
	logs.Params = []openapi.Param{query("follow", "boolean", "Stay until the job ends."),
		{Name: "Last-Event-ID", In: "header", Description: "Resume after this event."},
		query("after", "", "The same for clients that cannot set headers.")}
	logs.Answers = []openapi.Answer{{Status: ok, Description: "The lines.", Type: "text/plain"},
		{Status: http.StatusNoContent, Description: "The job has ended and nothing follows; of a stream of events alone."}}

	cancel := op(post, one+"/cancel", "cancel_job", runPacks, "Cancel a job")
	cancel.Answers = []openapi.Answer{{Status: ok, Description: "The job has ended; it may have ended before.", Body: jobs.Job{}}, jobAnswer}

	retry := op(post, one+"/retry", "retry_job", runPacks, "Run an ended job again as a new job")
	retry.Description = "With the old input, or with the one in the body. The new job's replay_of names the old one."
	retry.Body, retry.BodyOptional, retry.Answers = client.RetryRequest{}, true, []openapi.Answer{jobAnswer}

	cancelMany := op(post, "/api/v1/jobs/cancel", "cancel_jobs", runPacks, "Cancel many jobs")
	cancelMany.Description = "Those of ids, or those that the filters select and that have not ended; at most 1,000 a call, more says that there are others. " +
		"A job that has moved to another state meanwhile is skipped."
	cancelMany.Body, cancelMany.Answers = client.JobSelection{}, []openapi.Answer{{Status: ok, Description: "What was done.", Body: client.BulkResult{}}}

	retryMany := op(post, "/api/v1/jobs/retry", "retry_jobs", runPacks, "Run many ended jobs again as new jobs")
	retryMany.Description = "Those of ids, or those that the filters select: failed and cancelled ones unless state says otherwise; at most 1,000 a call. " +
		"With an Idempotency-Key each is retried once, however often the call is repeated."
	retryMany.Params, retryMany.Body, retryMany.Answers = []openapi.Param{keyParam}, client.JobSelection{}, cancelMany.Answers

	return []*route{
		{cancelMany, false, a.cancelJobs}, {retryMany, false, a.retryJobs},
		{submit, false, a.submitJob}, {batch, false, a.submitBatch}, {list, false, a.listJobs}, {show, false, a.showJob}, {result, false, a.jobResult},
		{events, false, a.streamEvents}, {logs, false, a.streamLogs}, {cancel, false, a.cancelJob}, {retry, false, a.retryJob},
	}
}

func (a *API) deadRoutes() []*route {
	op := func(method, path, id, scope, summary string) openapi.Operation {
		return openapi.Operation{Method: method, Path: path, ID: id, Tag: "dead letters", Scope: scope, Summary: summary}
	}
	list := op(get, "/api/v1/dead", "list_dead", readPacks, "List jobs that failed for good, newest first")
	list.Params = []openapi.Param{
		query("pool", "", "Name of the pool."), query("pack", "", "Name of the pack."), query("code", "", "Code the job ended with."),
		query("poison", "boolean", "Those that were quarantined, or those that were not."),
		query("replayed", "boolean", "Those that were replayed, or those that were not."),
		query("label", "", "key=value, or key alone for any value."),
		query("since", "", "Dead at or after this time (RFC 3339)."), query("until", "", "Dead before this time (RFC 3339)."),
		limitParam, cursorParam,
	}
	list.Answers = []openapi.Answer{{Status: ok, Description: "One page, without inputs.", Body: client.DeadList{}}}

	show := op(get, "/api/v1/dead/{id}", "show_dead", readPacks, "Show a dead letter with its input, the errors of its attempts and its replays")
	show.Answers = []openapi.Answer{{Status: ok, Description: "The dead letter.", Body: jobs.DeadLetter{}}}

	replay := op(post, "/api/v1/dead/replay", "replay_dead", runPacks, "Run dead letters again as new jobs")
	replay.Description = "Those of ids, or those that the filters select; at most 1,000 a call. One may get another input. rate_per_s spreads them over time. " +
		"With an Idempotency-Key each is replayed once, however often the call is repeated. When none that was named can be replayed the answer is the first error."
	replay.Params, replay.Body = []openapi.Param{keyParam}, client.ReplayRequest{}
	replay.Answers = []openapi.Answer{{Status: took, Description: "What became of each.", Body: client.ReplayList{}},
		{Status: ok, Description: "With dry_run: how many.", Body: client.ReplayList{}}}

	drop := op(http.MethodDelete, "/api/v1/dead/{id}", "drop_dead", runPacks, "Forget a dead letter")
	drop.Answers = []openapi.Answer{{Status: http.StatusNoContent, Description: "It is gone."}}

	dropMany := op(post, "/api/v1/dead/drop", "drop_many_dead", runPacks, "Forget many dead letters")
	dropMany.Description = "Those of ids, or those that the filters select; at most 1,000 a call."
	dropMany.Body, dropMany.Answers = client.DeadSelection{}, []openapi.Answer{{Status: ok, Description: "What was done.", Body: client.BulkResult{}}}

	return []*route{
		{list, false, a.listDead}, {show, false, a.showDead}, {drop, false, a.dropDead},
		{replay, false, a.replayDead}, {dropMany, false, a.dropManyDead},
	}
}

func (a *API) artifactRoutes() []*route {
	return []*route{
		{openapi.Operation{Method: get, Path: "/api/v1/artifacts", ID: "list_artifacts", Tag: "artifacts", Scope: readPacks,
			Summary: "List artifacts, newest first",
			Params: []openapi.Param{query("pack", "", "Namespace: the pack that made it."), query("name", "", "Part of the name, in any case."),
				limitParam, cursorParam},
			Answers: []openapi.Answer{{Status: ok, Description: "One page; url works for 15 minutes without a token.", Body: client.ArtifactList{}}},
		}, false, a.listArtifacts},
		{openapi.Operation{Method: get, Path: artifacts.DownloadPath + "{key...}", ID: "download_artifact", Tag: "artifacts", Scope: readPacks,
			Summary: "Download an artifact",
			Description: "Takes Range, If-None-Match and HEAD; ETag is the SHA-256. " +
				"A signed link (expires and signature, as url of a ref has them) takes the place of a token.",
			Params:  []openapi.Param{query("expires", "", "Of a signed link."), query("signature", "", "Of a signed link.")},
			Answers: []openapi.Answer{{Status: ok, Description: "The bytes.", Type: "application/octet-stream"}},
		}, true, a.download},
		{openapi.Operation{Method: http.MethodDelete, Path: "/api/v1/artifacts/{key...}", ID: "delete_artifact", Tag: "artifacts", Scope: runPacks,
			Summary: "Delete an artifact",
			Answers: []openapi.Answer{{Status: http.StatusNoContent, Description: "It is gone."}},
		}, false, a.deleteArtifact},
		{openapi.Operation{Method: post, Path: "/api/v1/artifacts/upload", ID: "upload_artifact", Tag: "artifacts", Scope: runPacks,
			Summary:     "Upload a file",
			Description: "A form with the field file, streamed, of at most 5 GiB.",
			Body:        uploadForm{}, BodyType: "multipart/form-data",
			Answers: []openapi.Answer{{Status: ok, Description: "Stored.", Body: client.Upload{}}},
		}, false, a.upload},
	}
}

// uploadForm describes the form of an upload.
type uploadForm struct {
	File []byte `json:"file"`
}

func (a *API) operateRoutes() []*route {
	open := func(path, id, summary string, body any) openapi.Operation {
		return openapi.Operation{Method: get, Path: path, ID: id, Tag: "operating", Scope: public, Summary: summary,
			Answers: []openapi.Answer{{Status: ok, Description: "The answer.", Body: body}}}
	}
	ready := open("/readyz", "readyz", "Tell whether calls can be served", client.Readiness{})
	ready.Params = []openapi.Param{query("pools", "", "Names of pools that must have a worker, with commas.")}
	ready.Answers = append(ready.Answers, openapi.Answer{Status: http.StatusServiceUnavailable, Description: "They cannot.", Body: client.Readiness{}})
	metrics := openapi.Operation{Method: get, Path: "/metrics", ID: "metrics", Tag: "operating", Scope: adminOnly,
		Summary: "Metrics for Prometheus", Answers: []openapi.Answer{{Status: ok, Description: "The metrics.", Type: "text/plain"}}}
	hidden := func(path string) openapi.Operation {
		return openapi.Operation{Method: get, Path: path, Hidden: true}
	}
	return []*route{
		{open("/healthz", "healthz", "Tell that the process runs", map[string]string{}), false, a.healthz},
		{ready, false, a.readyz},
		{open("/version", "version", "Tell the version", client.VersionInfo{}), false, a.version},
		{metrics, true, a.serveMetrics},
		{openapi.Operation{Method: get, Path: "/api/v1/openapi.json", ID: "openapi", Tag: "operating", Scope: public,
			Summary: "This document", Answers: []openapi.Answer{{Status: ok, Description: "OpenAPI 3.1.", Type: "application/json"}},
		}, false, a.serveOpenAPI},
		{hidden("/docs"), false, serveDocs},
		{hidden("/docs/{file}"), false, serveDocs},
		{hidden("/{$}"), false, func(x *exchange, r *http.Request) error {
			http.Redirect(x, r, "/docs", http.StatusFound)
			return nil
		}},
	}
}

// describe makes the OpenAPI document. The catalogue does not change while
// the process runs.
func (a *API) describe() ([]byte, error) {
	var ops []openapi.Operation
	for _, rt := range a.routes() {
		ops = append(ops, rt.Operation)
	}
	return openapi.Document(a.cfg.Version, ops, a.catalogue())
}

func (a *API) serveOpenAPI(x *exchange, r *http.Request) error {
	doc, err := a.openAPI()
	if err != nil {
		return err
	}
	sum := sha256.Sum256(doc)
	h := x.Header()
	h.Set("Content-Type", "application/json")
	h.Set("ETag", `"`+hex.EncodeToString(sum[:16])+`"`)
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Content-Type-Options", "nosniff")
	http.ServeContent(x, r, "", time.Time{}, bytes.NewReader(doc))
	return nil
}

var docsPage = openapi.Page("/docs")

func serveDocs(x *exchange, r *http.Request) error {
	h := x.Header()
	h.Set("Content-Security-Policy", openapi.PagePolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	docsPage.ServeHTTP(x, r)
	return nil
}
