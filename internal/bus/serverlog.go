package bus

import (
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/rs/zerolog"
)

// serverLog passes the embedded server's log on and notices what the server
// tells nobody else: a failed start and a storage error.
type serverLog struct {
	log    zerolog.Logger
	server *Server
	fatal  atomic.Pointer[string]
	last   atomic.Pointer[string]
}

func (l *serverLog) Noticef(format string, v ...any) {
	l.log.Debug().Str("from", "nats").Msgf(format, v...)
}

func (l *serverLog) Warnf(format string, v ...any) {
	if strings.HasPrefix(format, "Plaintext passwords") {
		// They come from files only their owner reads, never from a
		// configuration file the warning is about.
		l.Noticef(format, v...)
		return
	}
	if strings.Contains(format, "write store state from purge") && strings.Contains(fmt.Sprint(v...), "old update ignored") {
		// Of two purges at once, as the movers make them, the later state was
		// stored first: the older one is rightly left out.
		l.Noticef(format, v...)
		return
	}
	l.log.Warn().Str("from", "nats").Msgf(format, v...)
}

func (l *serverLog) Errorf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.last.Store(&text)
	if strings.Contains(strings.ToLower(text), "critical write error") {
		l.server.frozen.Store(true)
	}
	l.log.Error().Str("from", "nats").Msg(text)
}

func (l *serverLog) Fatalf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.fatal.Store(&text)
	l.log.Error().Str("from", "nats").Msg(text)
}

func (l *serverLog) Debugf(format string, v ...any) {
	l.log.Trace().Str("from", "nats").Msgf(format, v...)
}

func (l *serverLog) Tracef(format string, v ...any) {
	l.log.Trace().Str("from", "nats").Msgf(format, v...)
}

func (l *serverLog) lastError() string {
	if p := l.last.Load(); p != nil {
		return *p
	}
	return "no reason given"
}
