package gate

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/pion/logging"
)

// LoggerFactory gives pion's libraries a logger that believes none of their levels: what they call an error is a stranger's bad
// datagram. It all goes to DEBUG, and is not even formatted unless that level is on.
type LoggerFactory struct{ Log *slog.Logger }

// NewLogger is part of logging.LoggerFactory.
func (f LoggerFactory) NewLogger(scope string) logging.LeveledLogger {
	return logger{f.Log.With("library", scope)}
}

type logger struct{ log *slog.Logger }

func (l logger) print(format string, args ...any) {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		l.log.Debug(fmt.Sprintf(format, args...))
	}
}

func (l logger) Trace(string)          {}
func (l logger) Tracef(string, ...any) {}
func (l logger) Debug(string)          {}
func (l logger) Debugf(string, ...any) {}

func (l logger) Info(msg string)                   { l.print("%s", msg) }
func (l logger) Infof(format string, args ...any)  { l.print(format, args...) }
func (l logger) Warn(msg string)                   { l.print("%s", msg) }
func (l logger) Warnf(format string, args ...any)  { l.print(format, args...) }
func (l logger) Error(msg string)                  { l.print("%s", msg) }
func (l logger) Errorf(format string, args ...any) { l.print(format, args...) }
