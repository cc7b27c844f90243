// Package pionlog is the logger of the pion libraries.
package pionlog

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/pion/logging"
)

// Factory makes loggers that write the INFO, WARN and ERROR messages of a pion library at level DEBUG, and discard the
// rest. pion logs an error for every malformed datagram, which any host can send. A message is formatted only if DEBUG
// is on.
type Factory struct{ Log *slog.Logger }

// NewLogger implements logging.LoggerFactory.
func (f Factory) NewLogger(scope string) logging.LeveledLogger {
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
