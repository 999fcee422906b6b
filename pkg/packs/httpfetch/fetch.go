// Package httpfetch holds http.fetch: one HTTP request behind the egress
// guard.
package httpfetch

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

// maxBody is where a reply is cut, in bytes.
const maxBody = 16 << 20

// methods are those the pack sends.
var methods = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodHead}

type input struct {
	URL     string            `json:"url" jsonschema:"minLength=1,maxLength=16384" jsonschema_description:"Address to request, with http:// or https://."`
	Method  string            `json:"method,omitempty" jsonschema_description:"GET, POST, PUT, DELETE, PATCH or HEAD, in any case."`
	Headers map[string]string `json:"headers,omitempty" jsonschema_description:"Request headers by name."`
	Body    string            `json:"body,omitempty" jsonschema_description:"Request body."`
}

type output struct {
	Status     int               `json:"status" jsonschema_description:"HTTP status of the reply. A status of 400 and above is a success of the pack."`
	Headers    map[string]string `json:"headers" jsonschema_description:"The first value of every header of the reply, by canonical name."`
	Body       string            `json:"body" jsonschema_description:"The reply as text, empty when it is no UTF-8 text."`
	BodyBase64 string            `json:"body_base64,omitempty" jsonschema_description:"The reply in base64 when it is no UTF-8 text."`
	Truncated  bool              `json:"truncated" jsonschema_description:"Whether the reply was longer than 16 MiB and was cut there."`
}

// Pack is http.fetch.
var Pack = packs.Define(packs.Spec[input, output]{
	Name:        "http.fetch",
	Summary:     "Makes one HTTP request and returns the reply",
	Description: "Replies with an error status are returned like any other. Redirects are followed within the egress rules.",
	Needs:       packs.Needs{Egress: true},
	Defaults:    input{Method: http.MethodGet},
	Timeout:     30 * time.Second,
	Examples: []packs.Example{
		{Title: "Get a page", Input: json.RawMessage(`{"url":"https://example.com/"}`)},
		{Title: "Post JSON", Input: json.RawMessage(`{"url":"https://example.com/items","method":"POST","headers":{"Content-Type":"application/json"},"body":"{\"name\":\"deck\"}"}`)},
	},
	Run: fetch,
})

func fetch(ctx context.Context, run *packs.Run, in input) (output, error) {
	in.URL = strings.TrimSpace(in.URL)
	req, err := request(ctx, run, in)
	if err != nil {
		return output{}, err
	}
	if err := run.CheckURL(ctx, in.URL); err != nil {
		return output{}, err
	}
	resp, err := run.HTTP().Do(req)
	if err != nil {
		return output{}, failed(req, err)
	}
	defer resp.Body.Close()
	var body bytes.Buffer
	if _, err := io.Copy(&body, io.LimitReader(resp.Body, maxBody+1)); err != nil {
		return output{}, failed(req, fmt.Errorf("read reply: %w", err))
	}
	out := output{Status: resp.StatusCode, Headers: make(map[string]string, len(resp.Header)), Truncated: body.Len() > maxBody}
	for name, values := range resp.Header {
		out.Headers[name] = strings.ToValidUTF8(values[0], "\uFFFD")
	}
	out.Body, out.BodyBase64 = text(body.Bytes()[:min(body.Len(), maxBody)], out.Truncated)
	return out, nil
}

// request builds the request; its errors are the caller's to fix.
func request(ctx context.Context, run *packs.Run, in input) (*http.Request, error) {
	if err := refusePlaceholders(in); err != nil {
		return nil, err
	}
	method := strings.ToUpper(strings.TrimSpace(in.Method))
	if !slices.Contains(methods, method) {
		return nil, packs.Errorf(packs.InvalidInput, "/method: %q is not supported; use one of %s", in.Method, strings.Join(methods, ", "))
	}
	u, err := url.Parse(in.URL)
	if err != nil {
		return nil, packs.Fail(packs.InvalidInput, err, "/url: is not a valid URL; write it like https://example.com/path")
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, packs.Errorf(packs.InvalidInput, "/url: must begin with http:// or https:// and name a host")
	}
	req, err := http.NewRequestWithContext(ctx, method, in.URL, strings.NewReader(in.Body))
	if err != nil {
		return nil, packs.Fail(packs.InvalidInput, err, "/url: cannot be requested; check its spelling")
	}
	req.Header.Set("User-Agent", run.UserAgent())
	for name, value := range in.Headers {
		if !httpguts.ValidHeaderFieldName(name) {
			return nil, packs.Errorf(packs.InvalidInput, "/headers: %q is not a valid header name", name)
		}
		if !httpguts.ValidHeaderFieldValue(value) {
			return nil, packs.Errorf(packs.InvalidInput, "/headers/%s: the value has characters that no header may have, such as a line break", name)
		}
		if strings.EqualFold(name, "Host") { // net/http takes it from the request alone
			if req.Host = value; !httpguts.ValidHostHeader(value) || value == "" {
				return nil, packs.Errorf(packs.InvalidInput, "/headers/%s: %q is not a valid host", name, value)
			}
			continue
		}
		req.Header.Set(name, value)
	}
	return req, nil
}

// placeholder begins a reference to a credential of the vault.
const placeholder = "${vault:"

// refusePlaceholders keeps a placeholder from being sent as it is written.
func refusePlaceholders(in input) error {
	refuse := func(pointer, s string) error {
		if !strings.Contains(s, placeholder) {
			return nil
		}
		return packs.Errorf(packs.InvalidInput, "%s: holds a ${vault:…} placeholder, but the vault is not available in this version; nothing was sent", pointer)
	}
	errs := []error{refuse("/url", in.URL), refuse("/body", in.Body)}
	for name, value := range in.Headers {
		errs = append(errs, refuse("/headers/"+name, name+"\n"+value))
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// failed types what went wrong between here and the server. The text leaves
// the URL out, which may hold a secret.
func failed(req *http.Request, err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	var refusal packs.EgressRefusal
	switch {
	case errors.As(err, &refusal):
		return err // the engine makes an invalid_input of it
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return packs.Fail(packs.Timeout, err, fmt.Sprintf("%s did not answer in time; try again or ask for less", req.URL.Hostname()))
	}
	return packs.Fail(packs.HandlerFailed, err, fmt.Sprintf("the request to %s failed: %v", req.URL.Hostname(), err))
}

// text returns body as text, or in base64 when it is none. A character cut in
// two by the limit is left out.
func text(body []byte, cut bool) (plain, encoded string) {
	if utf8.Valid(body) {
		return string(body), ""
	}
	if cut {
		for n := 1; n < utf8.UTFMax; n++ {
			if head := body[:len(body)-n]; utf8.Valid(head) && !utf8.FullRune(body[len(head):]) {
				return string(head), ""
			}
		}
	}
	return "", base64.StdEncoding.EncodeToString(body)
}
