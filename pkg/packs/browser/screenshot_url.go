// Package browser holds the browser.* family: packs that open pages somebody
// else wrote in the Chromium of a leased sidecar.
package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/helmdeck/helmdeck/pkg/chromium"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

const (
	// openWithin bounds a page from the first request to the picture.
	openWithin = 30 * time.Second
	// maxHeight of a picture in pixels: what Chromium draws in one piece.
	maxHeight = 16384
	// maxTitle bounds the title in the output, in bytes.
	maxTitle = 1000
)

type screenshotInput struct {
	URL      string `json:"url" jsonschema:"minLength=1,maxLength=16384" jsonschema_description:"Address of the page, with http:// or https://."`
	FullPage bool   `json:"fullPage,omitempty" jsonschema_description:"Show the whole height of the page, up to 16384 pixels, in place of the first 1280x720."`
}

type screenshotOutput struct {
	URL         string `json:"url" jsonschema_description:"The address as it was given."`
	ArtifactKey string `json:"artifact_key" jsonschema_description:"Key of the picture, a PNG."`
	Size        int64  `json:"size" jsonschema_description:"Bytes of the picture."`
	Status      int    `json:"status" jsonschema_description:"HTTP status of the page in the picture. 400 and above is a success of the pack."`
	FinalURL    string `json:"final_url" jsonschema_description:"Address of the page in the picture, after redirects."`
	Title       string `json:"title" jsonschema_description:"Title of the page, empty when it has none."`
}

// ScreenshotURL is browser.screenshot_url.
var ScreenshotURL = screenshotPack(openWithin)

func screenshotPack(limit time.Duration) packs.Pack {
	return packs.Define(packs.Spec[screenshotInput, screenshotOutput]{
		Name:        "browser.screenshot_url",
		Pool:        packs.PoolBrowser,
		Summary:     "Opens a web page in Chromium and stores a picture of it",
		Description: "The picture is a PNG 1280 pixels wide. The page has 30 seconds. Message boxes are dismissed and downloads refused.",
		Needs:       packs.Needs{Session: &sessions.Spec{Image: "browser", Profile: sessions.ProfileIO}, Egress: true, Artifacts: true},
		Timeout:     2 * time.Minute,
		Examples: []packs.Example{
			{Title: "The top of a page", Input: json.RawMessage(`{"url":"https://example.com/"}`)},
			{Title: "A whole page", Input: json.RawMessage(`{"url":"https://example.com/","fullPage":true}`)},
		},
		Run: func(ctx context.Context, run *packs.Run, in screenshotInput) (screenshotOutput, error) {
			return screenshot(ctx, run, in, limit)
		},
	})
}

func screenshot(ctx context.Context, run *packs.Run, in screenshotInput, limit time.Duration) (screenshotOutput, error) {
	address, host, err := checkAddress(in.URL)
	if err != nil {
		return screenshotOutput{}, err
	}
	if err := run.CheckURL(ctx, address); err != nil {
		return screenshotOutput{}, err
	}
	run.Progress(5, "starting a browser")
	session, err := run.Session(ctx)
	if err != nil {
		return screenshotOutput{}, err
	}
	page, err := chromium.Open(ctx, session, chromium.Config{})
	if err != nil {
		return screenshotOutput{}, browserFailed(ctx, err)
	}
	defer page.Close()

	run.Progress(25, "opening "+host)
	visit, picture, err := capture(ctx, run, page, address, in.FullPage, limit)
	if err != nil {
		return screenshotOutput{}, err
	}
	run.Progress(85, "saving the picture")
	ref, err := run.SaveArtifact(ctx, "screenshot.png", "image/png", bytes.NewReader(picture))
	if err != nil {
		return screenshotOutput{}, err
	}
	return screenshotOutput{
		URL: in.URL, ArtifactKey: ref.Key, Size: ref.Size,
		Status: visit.Status, FinalURL: visit.URL, Title: shorten(visit.Title, maxTitle),
	}, nil
}

// checkAddress returns the address to open and its host.
func checkAddress(raw string) (address, host string, err error) {
	address = strings.TrimSpace(raw)
	u, err := url.Parse(address)
	if err != nil {
		return "", "", packs.Fail(packs.InvalidInput, err, "/url: is not a valid URL; write it like https://example.com/path")
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" {
		return "", "", packs.Errorf(packs.InvalidInput, "/url: must begin with http:// or https:// and name a host")
	}
	return address, u.Hostname(), nil
}

// capture opens the address and takes the picture within limit.
func capture(ctx context.Context, run *packs.Run, page *chromium.Page, address string, full bool, limit time.Duration) (chromium.Visit, []byte, error) {
	bounded, cancel := context.WithTimeoutCause(ctx, limit, errLimit)
	defer cancel()
	visit, err := page.Navigate(bounded, address)
	if err != nil {
		return visit, nil, openFailed(ctx, run, err, limit)
	}
	if !visit.Complete {
		run.Log("the page was still loading when its picture was taken")
	}
	run.Progress(60, "taking the picture")
	picture, err := page.Screenshot(bounded, chromium.Shot{Full: full, MaxHeight: maxHeight})
	if err != nil {
		return visit, nil, openFailed(ctx, run, err, limit)
	}
	return visit, picture, nil
}

// errLimit is the end of the time a page has.
var errLimit = errors.New("the page's time is over")

// openFailed types what kept a page from being shown.
func openFailed(ctx context.Context, run *packs.Run, err error, limit time.Duration) error {
	if errors.Is(err, errLimit) {
		return packs.Fail(packs.Timeout, err, fmt.Sprintf("the page did not open within %s; try again, or try another page", limit))
	}
	failed, ok := errors.AsType[*chromium.LoadError](err)
	if !ok {
		return browserFailed(ctx, err)
	}
	host := "the page"
	if u, err := url.Parse(failed.URL); err == nil && u.Host != "" {
		host = u.Host
	}
	if failed.Denied || failed.Unclear {
		// The guard itself knows the reason, which the proxy cannot pass on.
		if err := run.CheckURL(ctx, failed.URL); err != nil {
			return err
		}
	}
	switch {
	case failed.Denied:
		return packs.Fail(packs.InvalidInput, err, fmt.Sprintf("egress denied: %s is refused by the egress rules", host))
	case failed.Download:
		return packs.Fail(packs.HandlerFailed, err, fmt.Sprintf("%s sent a file to save, not a page; fetch it with http.fetch", host))
	}
	return packs.Fail(packs.HandlerFailed, err, fmt.Sprintf("%s could not be opened: %s", host, failed.Text))
}

// browserFailed types a fault of the browser, unless ctx is why.
func browserFailed(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil, errors.Is(err, sessions.ErrLost):
		return err
	case errors.Is(err, chromium.ErrCrashed):
		return packs.Fail(packs.HandlerFailed, err, "the page crashed the browser, for want of memory as a rule")
	}
	return packs.Fail(packs.HandlerFailed, err, "the browser did not do its work; try again")
}

// shorten cuts s to at most n bytes between characters.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
