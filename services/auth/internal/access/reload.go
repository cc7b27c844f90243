package access

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/stunner-gateway/stunner/services/auth/internal/yamlfile"
)

// fileInterval is the time between two reads of the policy file, which may be a mounted ConfigMap or Secret.
const fileInterval = time.Second

// rulesFile is the policy file of a Policy.
type rulesFile struct {
	path    string
	changes yamlfile.Changes
	reads   keyReads
}

// OpenPolicy returns the Policy of a policy file. It returns an error if the file is invalid. Until ctx ends, it reads
// the file again, and refreshes the keys of issuers. If the file becomes invalid, the last valid policy stays in force.
func OpenPolicy(ctx context.Context, path string, log *slog.Logger) (*Policy, error) {
	p := &Policy{file: &rulesFile{path: path}}
	if err := p.read(ctx, log); err != nil {
		return nil, err
	}
	go func() {
		tick := time.NewTicker(fileInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if err := p.read(ctx, log); err != nil {
					log.Error("keep last valid policy", "error", err)
				}
			}
		}
	}()
	return p, nil
}

// read reads the policy file, and puts it into force if it has changed or was not read before. It returns the same
// error of consecutive reads only once.
func (p *Policy) read(ctx context.Context, log *slog.Logger) error {
	f := p.file
	raw, err := yamlfile.ReadFile(f.path, maxRules)
	switch {
	case err != nil:
		f.changes.Lose()
		err = fmt.Errorf("read --policy: %w", err)
	case p.state.Load() == nil || f.changes.New(raw):
		if err = p.put(ctx, raw, log); err == nil {
			f.changes.Use(raw)
		}
	}
	last := f.reads.state().Problem
	f.reads.done(err)
	if err != nil && err.Error() == last {
		return nil
	}
	return err
}

// put puts the Rules of a policy file into force.
func (p *Policy) put(ctx context.Context, raw []byte, log *slog.Logger) error {
	rules, err := ParseRules(p.file.path, raw)
	if err != nil {
		return fmt.Errorf("read --policy: %w", err)
	}
	previous := p.state.Load()
	next, err := newState(ctx, rules, previous, log)
	if err != nil {
		return fmt.Errorf("read --policy: %s: %w", p.file.path, err)
	}
	p.state.Store(next)
	if previous == nil {
		return nil
	}
	log.Info("policy has changed", "file", p.file.path, "issuers", len(rules.Issuers), "keys", len(rules.Keys),
		"open", rules.Open != nil)
	used := map[*source]bool{}
	for _, v := range next.issuers {
		used[v.source] = true
	}
	for _, v := range previous.issuers {
		if !used[v.source] {
			v.source.end()
		}
	}
	return nil
}
