package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
)

// LevelTrace is the level of per-packet messages, below all levels of slog.
const LevelTrace = slog.LevelDebug - 4

// disabled is higher than the level of any message, so that a scope with this level logs nothing.
const disabled = slog.LevelError + 100

// all is the scope whose level applies to every scope without a level of its own.
const all = "all"

// scopeKey is the attribute with the scope of a message.
const scopeKey = "scope"

// levelNames are the levels in a specification, the most verbose first.
var levelNames = []struct {
	name  string
	level slog.Level
}{
	{"TRACE", LevelTrace},
	{"DEBUG", slog.LevelDebug},
	{"INFO", slog.LevelInfo},
	{"WARN", slog.LevelWarn},
	{"ERROR", slog.LevelError},
	{"DISABLE", disabled},
}

// Levels holds the level of each log scope. It can be changed while loggers use it. The zero value is INFO for all
// scopes.
type Levels struct {
	scopes atomic.Pointer[map[string]slog.Level]
}

// ParseLevels parses SCOPE:LEVEL[,SCOPE:LEVEL…]; case does not matter. A later part takes precedence over an earlier
// one, and a part for "all" also replaces the parts before it. The error names the invalid parts.
func ParseLevels(spec string) (*Levels, error) {
	scopes, invalid := readLevels(spec)
	if len(invalid) > 0 {
		return nil, fmt.Errorf(
			"parse log levels: unreadable %q: write SCOPE:LEVEL, the levels are TRACE, DEBUG, INFO, WARN, ERROR and DISABLE",
			invalid)
	}
	l := &Levels{}
	l.scopes.Store(&scopes)
	return l, nil
}

// Set replaces the levels. It ignores invalid parts, so that an error in a config cannot stop a process from logging.
func (l *Levels) Set(spec string) {
	scopes, _ := readLevels(spec)
	l.scopes.Store(&scopes)
}

// String returns the levels in the form of ParseLevels.
func (l *Levels) String() string {
	parts := []string{all + ":" + levelName(l.of(all))}
	if scopes := l.scopes.Load(); scopes != nil {
		for _, scope := range slices.Sorted(maps.Keys(*scopes)) {
			if scope != all {
				parts = append(parts, scope+":"+levelName((*scopes)[scope]))
			}
		}
	}
	return strings.Join(parts, ",")
}

// of returns the level of a scope.
func (l *Levels) of(scope string) slog.Level {
	scopes := l.scopes.Load()
	if scopes == nil {
		return slog.LevelInfo
	}
	if level, ok := (*scopes)[scope]; ok {
		return level
	}
	return (*scopes)[all] // the zero level is INFO
}

func readLevels(spec string) (scopes map[string]slog.Level, invalid []string) {
	scopes = map[string]slog.Level{}
	for part := range strings.SplitSeq(spec, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		i := strings.LastIndexByte(part, ':')
		level, ok := levelOf(part[i+1:])
		scope := strings.ToLower(strings.TrimSpace(part[:max(i, 0)]))
		if !ok || scope == "" {
			invalid = append(invalid, part)
			continue
		}
		if scope == all {
			clear(scopes)
		}
		scopes[scope] = level
	}
	return scopes, invalid
}

func levelOf(name string) (slog.Level, bool) {
	for _, l := range levelNames {
		if strings.EqualFold(strings.TrimSpace(name), l.name) {
			return l.level, true
		}
	}
	return 0, false
}

func levelName(level slog.Level) string {
	for _, l := range levelNames {
		if level <= l.level {
			return l.name
		}
	}
	return level.String()
}

// NewLog returns a logger that writes to w the messages that levels allow, in format "json" or else as text. Both
// formats escape control characters, so that text from clients cannot forge log lines.
func NewLog(w io.Writer, format string, levels *Levels) *slog.Logger {
	o := &slog.HandlerOptions{
		Level: LevelTrace - 1, // handler.Enabled filters
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if level, ok := a.Value.Any().(slog.Level); ok && len(groups) == 0 && a.Key == slog.LevelKey {
				return slog.String(slog.LevelKey, levelName(level))
			}
			return a
		},
	}
	var out slog.Handler = slog.NewTextHandler(w, o)
	if strings.EqualFold(format, "json") {
		out = slog.NewJSONHandler(w, o)
	}
	return slog.New(handler{Handler: out, levels: levels, scope: all})
}

// Scope returns a logger with a scope, which determines its level. For a logger that NewLog has not returned, it only
// adds the attribute.
func Scope(log *slog.Logger, name string) *slog.Logger {
	if h, ok := log.Handler().(handler); ok {
		h.scope = strings.ToLower(name)
		log = slog.New(h)
	}
	return log.With(scopeKey, name)
}

// handler filters messages by the level of its scope.
type handler struct {
	slog.Handler
	levels *Levels
	scope  string
}

func (h handler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.levels.of(h.scope)
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.Handler = h.Handler.WithAttrs(attrs)
	return h
}

func (h handler) WithGroup(name string) slog.Handler {
	h.Handler = h.Handler.WithGroup(name)
	return h
}
