package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

func TestParseLevels(t *testing.T) {
	for spec, want := range map[string]string{
		"":                              "all:INFO",
		"all:INFO":                      "all:INFO",
		"ALL:debug":                     "all:DEBUG",
		"all:WARN,turn:trace":           "all:WARN,turn:TRACE",
		"turn:DEBUG, all:ERROR":         "all:ERROR",
		"turn:DEBUG,auth:DISABLE":       "all:INFO,auth:DISABLE,turn:DEBUG",
		"turn:DEBUG,turn:WARN,":         "all:INFO,turn:WARN",
		"listener-media/edge/udp:DEBUG": "all:INFO,listener-media/edge/udp:DEBUG",
	} {
		levels, err := telemetry.ParseLevels(spec)
		if err != nil || levels.String() != want {
			t.Errorf("%q is read as %v, want %s: %v", spec, levels, want, err)
		}
	}
}

func TestParseLevelsNamesInvalidParts(t *testing.T) {
	_, err := telemetry.ParseLevels("all:INFO,turn:LOUD,nothing,:DEBUG,auth:")
	for _, part := range []string{"turn:LOUD", "nothing", ":DEBUG", "auth:"} {
		if err == nil || !strings.Contains(err.Error(), `"`+part+`"`) {
			t.Errorf("%s is not named: %v", part, err)
		}
	}
	if err != nil && strings.Contains(err.Error(), `"all:INFO"`) {
		t.Errorf("what is good is named: %v", err)
	}
}

func TestSetIgnoresInvalidLevels(t *testing.T) {
	var levels telemetry.Levels
	levels.Set("all:LOUD,turn:DEBUG,x")
	if got := levels.String(); got != "all:INFO,turn:DEBUG" {
		t.Errorf("levels %s", got)
	}
}

func TestScopesHaveTheirLevels(t *testing.T) {
	var out bytes.Buffer
	levels, err := telemetry.ParseLevels("all:WARN,turn:TRACE,auth:DISABLE")
	if err != nil {
		t.Fatal(err)
	}
	log := telemetry.NewLog(&out, "text", levels)
	turn, auth, other := telemetry.Scope(log, "turn"), telemetry.Scope(log, "auth"), telemetry.Scope(log, "other").With(
		"k", "v",
	).WithGroup("g")
	speak := func() string {
		out.Reset()
		for name, l := range map[string]*slog.Logger{"log": log, "turn": turn, "auth": auth, "other": other} {
			for _, level := range []slog.Level{
				telemetry.LevelTrace, slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError,
			} {
				l.Log(context.Background(), level, name)
			}
		}
		return out.String()
	}
	count := func(text, name string) int {
		return strings.Count(text, "msg="+name+" ") + strings.Count(text, "msg="+name+"\n")
	}
	check := func(when string, want map[string]int) {
		text := speak()
		for name, n := range want {
			if got := count(text, name); got != n {
				t.Errorf("%s: %s says %d lines, want %d\n%s", when, name, got, n, text)
			}
		}
	}
	check("at first", map[string]int{"log": 2, "turn": 5, "auth": 0, "other": 2})
	levels.Set("all:DEBUG,other:ERROR")
	check("after a change", map[string]int{"log": 4, "turn": 4, "auth": 4, "other": 1})
	if text := speak(); !strings.Contains(text, "level=ERROR msg=other scope=other k=v") {
		t.Errorf("attributes are missing in\n%s", text)
	}
	levels.Set("all:TRACE")
	if text := speak(); !strings.Contains(text, "level=TRACE msg=log") {
		t.Errorf("the level TRACE has no name in\n%s", text)
	}
}

func TestLogsAreOneLineAMessage(t *testing.T) {
	const hostile = "a\nlevel=ERROR msg=forged\x1b[31m\x00"
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		log := telemetry.NewLog(&out, format, &telemetry.Levels{})
		telemetry.Scope(log, hostile).Info(hostile, "key", hostile)
		text := out.String()
		if strings.Count(text, "\n") != 1 || strings.ContainsAny(text, "\x1b\x00") {
			t.Errorf("%s: %q", format, text)
		}
		if format == "json" {
			var message struct{ Level, Msg, Scope, Key string }
			if err := json.Unmarshal(out.Bytes(), &message); err != nil || message.Level != "INFO" ||
				message.Msg != hostile || message.Key != hostile {
				t.Errorf("%+v, %v", message, err)
			}
		}
	}
}

func TestScopeOfAForeignLogger(t *testing.T) {
	var out bytes.Buffer
	telemetry.Scope(slog.New(slog.NewTextHandler(&out, nil)), "turn").Info("m")
	if !strings.Contains(out.String(), "msg=m scope=turn") {
		t.Errorf("logged %s", out.String())
	}
}

func TestLevelsChangeWhileTheyAreRead(t *testing.T) {
	levels := &telemetry.Levels{}
	log := telemetry.Scope(telemetry.NewLog(discard{}, "json", levels), "turn")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 200 {
				levels.Set("turn:DEBUG")
				log.Debug("m")
				_ = levels.String()
			}
		})
	}
	all.Wait()
	if levels.String() != "all:INFO,turn:DEBUG" {
		t.Errorf("levels %s", levels)
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
