package agent

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"

	"github.com/helmdeck/helmdeck/pkg/sessions/wire"
)

// refusal is an error with its answer.
type refusal struct {
	status        int
	code, message string
}

func (r *refusal) Error() string { return r.code + ": " + r.message }

func invalid(message string) error {
	return &refusal{http.StatusBadRequest, wire.CodeInvalid, message}
}

func notFound(message string) error {
	return &refusal{http.StatusNotFound, wire.CodeNotFound, message}
}

type handler func(w http.ResponseWriter, r *http.Request) error

func (a *Agent) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+wire.PathHealth, a.guard(false, a.health))
	mux.Handle("POST "+wire.PathRenew, a.guard(false, a.serveRenew))
	mux.Handle("POST "+wire.PathShutdown, a.guard(false, a.serveShutdown))
	mux.Handle("POST "+wire.PathUpstream, a.guard(false, a.serveUpstream))
	mux.Handle("POST "+wire.PathExec, a.guard(true, a.serveExec))
	mux.Handle("PUT "+wire.PathFile, a.guard(true, a.writeFile))
	mux.Handle("GET "+wire.PathFile, a.guard(true, a.readFile))
	mux.Handle("POST "+wire.PathBrowser, a.guard(true, a.startBrowser))
	mux.Handle("GET "+wire.PathDevTools, a.guard(true, a.serveDevTools))
	return mux
}

// guard lets a request pass that carries the lease's token and generation and,
// for work, comes before the lease expired.
func (a *Agent) guard(work bool, h handler) http.Handler {
	want := sha256.Sum256([]byte("Bearer " + a.boot.Token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(wire.HeaderLease, a.boot.Lease)
		got := sha256.Sum256([]byte(r.Header.Get("Authorization")))
		var err error
		switch {
		case subtle.ConstantTimeCompare(got[:], want[:]) != 1:
			err = &refusal{http.StatusUnauthorized, wire.CodeDenied, "wrong token"}
		case r.Header.Get(wire.HeaderGeneration) != strconv.FormatUint(a.boot.Generation, 10):
			err = &refusal{http.StatusConflict, wire.CodeGeneration, "the sidecar serves another generation of the lease"}
		case work && a.expired():
			err = &refusal{http.StatusGone, wire.CodeExpired, "the lease was not renewed in time"}
		default:
			ctx := otel.GetTextMapPropagator().Extract(r.Context(), propagation.HeaderCarrier(r.Header))
			err = h(w, r.WithContext(ctx))
		}
		if err != nil {
			a.refuse(w, err)
		}
	})
}

func (a *Agent) refuse(w http.ResponseWriter, err error) {
	r, ok := errors.AsType[*refusal](err)
	if !ok {
		a.log.Warn().Err(err).Msg("call failed")
		r = &refusal{http.StatusInternalServerError, wire.CodeFailed, err.Error()}
	}
	reply(w, r.status, wire.Error{Code: r.code, Message: r.message})
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the reader may be gone
}

func (a *Agent) health(w http.ResponseWriter, _ *http.Request) error {
	reply(w, http.StatusOK, wire.Health{Lease: a.boot.Lease, Generation: a.boot.Generation, Expired: a.expired()})
	return nil
}

func (a *Agent) serveRenew(w http.ResponseWriter, _ *http.Request) error {
	a.renew()
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *Agent) serveShutdown(w http.ResponseWriter, _ *http.Request) error {
	w.WriteHeader(http.StatusNoContent)
	_ = http.NewResponseController(w).Flush()
	a.shutdown()
	return nil
}

func (a *Agent) serveUpstream(w http.ResponseWriter, r *http.Request) error {
	var u wire.Upstream
	if err := json.NewDecoder(io.LimitReader(r.Body, 64<<10)).Decode(&u); err != nil {
		return invalid("malformed body: " + err.Error())
	}
	if a.relay == nil {
		return invalid("the sidecar was started without a proxy")
	}
	if err := a.relay.set(u.ProxyURL); err != nil {
		return invalid(err.Error())
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
