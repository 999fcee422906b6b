package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/helmdeck/helmdeck/pkg/sessions/wire"
)

// firstOwnID is where the ids of the agent's own commands start; a client that
// counts from 1 does not come here.
const firstOwnID = 2_000_000_000

// client is the one websocket that drives the browser.
type client struct {
	ws   *websocket.Conn
	out  chan []byte   // to the websocket
	gone chan struct{} // closed when the websocket ended
}

// serveDevTools bridges a websocket to Chromium's pipe, one client at a time.
// When Chromium dies the websocket closes with status 1011 and says so; the
// next connection starts a fresh one.
func (a *Agent) serveDevTools(w http.ResponseWriter, r *http.Request) error {
	ctx, span := a.tracer.Start(r.Context(), "agent.devtools")
	defer span.End()
	c, err := a.browser.ensure(ctx)
	if err != nil {
		return err
	}
	cl := &client{out: make(chan []byte, 64), gone: make(chan struct{})}
	if !c.claim(cl) {
		return &refusal{http.StatusConflict, wire.CodeBusy, "the browser has a client already"}
	}
	defer c.release()
	defer close(cl.gone)
	cl.ws, err = websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		a.log.Debug().Err(err).Msg("websocket refused")
		return nil // Accept answered
	}
	cl.ws.SetReadLimit(maxMessage)
	c.serve(ctx, cl)
	return nil
}

// serve passes messages both ways until one side ends.
func (c *chromium) serve(ctx context.Context, cl *client) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var writer sync.WaitGroup
	writer.Go(func() {
		defer cancel()
		for {
			select {
			case m := <-cl.out:
				if cl.ws.Write(ctx, websocket.MessageText, m) != nil {
					return
				}
			case <-c.done:
				c.flush(ctx, cl)
				_ = cl.ws.Close(websocket.StatusInternalError, c.ended)
				return
			case <-ctx.Done():
				return
			}
		}
	})
	for {
		_, m, err := cl.ws.Read(ctx)
		if err != nil {
			break
		}
		if bytes.IndexByte(m, 0) >= 0 {
			_ = cl.ws.Close(websocket.StatusInvalidFramePayloadData, "a message holds a NUL byte")
			break
		}
		if c.send(m) != nil {
			// The writer sees done and says why.
			break
		}
	}
	if !c.alive() {
		writer.Wait()
	}
	cancel()
	writer.Wait()
	_ = cl.ws.CloseNow()
}

// flush writes what Chromium said before it died.
func (c *chromium) flush(ctx context.Context, cl *client) {
	for {
		select {
		case m := <-cl.out:
			if cl.ws.Write(ctx, websocket.MessageText, m) != nil {
				return
			}
		default:
			return
		}
	}
}

func (c *chromium) claim(cl *client) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client != nil {
		return false
	}
	c.client = cl
	return true
}

// send writes one message to Chromium.
func (c *chromium) send(m []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	_ = c.in.SetWriteDeadline(time.Now().Add(sendWithin))
	_, err := c.in.Write(append(m[:len(m):len(m)], 0))
	if err != nil {
		c.kill() // half a message may have been written: nothing can follow
		return fmt.Errorf("send to browser: %w", err)
	}
	return nil
}

var (
	attached = []byte(`{"method":"Target.attachedToTarget"`)
	detached = []byte(`{"method":"Target.detachedFromTarget"`)
)

// route notes what the agent needs to know and hands m to the client.
func (c *chromium) route(m []byte) {
	c.mu.Lock()
	if bytes.HasPrefix(m, attached) || bytes.HasPrefix(m, detached) {
		var event struct {
			Params struct {
				SessionID string `json:"sessionId"`
			} `json:"params"`
		}
		if json.Unmarshal(m, &event) == nil {
			if bytes.HasPrefix(m, attached) {
				c.sessions[event.Params.SessionID] = true
			} else {
				delete(c.sessions, event.Params.SessionID)
			}
		}
	}
	if id, ok := answerTo(m); ok && c.waiting[id] != nil {
		close(c.waiting[id])
		delete(c.waiting, id)
		c.mu.Unlock()
		return
	}
	cl := c.client
	c.mu.Unlock()
	if cl == nil {
		return
	}
	select {
	case cl.out <- m:
	case <-cl.gone:
	}
}

// answerTo returns the id of an answer; events begin with their method.
func answerTo(m []byte) (string, bool) {
	rest, ok := bytes.CutPrefix(m, []byte(`{"id":`))
	if !ok {
		return "", false
	}
	n := bytes.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if n <= 0 {
		return "", false
	}
	return string(rest[:n]), true
}

// command sends a command of the agent's own; answered is closed with its
// answer.
func (c *chromium) command(method string, params any) (answered <-chan struct{}, err error) {
	c.mu.Lock()
	c.nextID++
	id := firstOwnID + c.nextID
	ch := make(chan struct{})
	c.waiting[strconv.Itoa(id)] = ch
	c.mu.Unlock()
	m, err := json.Marshal(map[string]any{"id": id, "method": method, "params": params})
	if err != nil {
		return nil, err
	}
	return ch, c.send(m)
}

// barrier returns when Chromium answered everything sent before.
func (c *chromium) barrier(ctx context.Context) error {
	answered, err := c.command("Browser.getVersion", struct{}{})
	if err != nil {
		return err
	}
	select {
	case <-answered:
		return nil
	case <-c.done:
		return errors.New(c.ended)
	case <-ctx.Done():
		return fmt.Errorf("no answer from browser: %w", context.Cause(ctx))
	}
}

// release frees the place of the client. The pipe has no notion of clients,
// so what the last one attached to is detached here, and nothing meant for it
// reaches the next. Its pages stay.
func (c *chromium) release() {
	ctx, cancel := context.WithTimeout(context.Background(), detachWithin)
	defer cancel()
	err := c.detach(ctx)
	if err != nil {
		c.kill()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.client = nil
}

func (c *chromium) detach(ctx context.Context) error {
	type params = map[string]any
	if _, err := c.command("Target.setAutoAttach", params{"autoAttach": false, "waitForDebuggerOnStart": false, "flatten": true}); err != nil {
		return err
	}
	if _, err := c.command("Target.setDiscoverTargets", params{"discover": false}); err != nil {
		return err
	}
	c.mu.Lock()
	open := make([]string, 0, len(c.sessions))
	for s := range c.sessions {
		open = append(open, s)
	}
	clear(c.sessions)
	c.mu.Unlock()
	for _, s := range open {
		if _, err := c.command("Target.detachFromTarget", params{"sessionId": s}); err != nil {
			return err
		}
	}
	return c.barrier(ctx)
}
