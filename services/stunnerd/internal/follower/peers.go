package follower

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// peersFile is the name of the file with the list of peers in the state directory.
const peersFile = "peers.json"

// savedPeers is the content of peersFile.
type savedPeers struct {
	// ID is the id of the config whose pods the list contains.
	ID string `json:"id"`
	// Saved is when the list was received.
	Saved time.Time       `json:"saved"`
	Peers discovery.Peers `json:"peers"`
}

// SavePeers atomically replaces the saved list of peers. The file contains keys and is readable by its owner only.
func (l LastGood) SavePeers(p discovery.Peers, now time.Time) error {
	if err := l.replace(peersFile, savedPeers{l.ID, now, p}); err != nil {
		return fmt.Errorf("save list of peers: %w", err)
	}
	return nil
}

// LoadPeers returns the saved list of peers. It is an error if the list is of another config, is invalid, or is older
// than MaxAge; errNothingSaved if there is none.
func (l LastGood) LoadPeers(now time.Time) (discovery.Peers, error) {
	if l.Dir == "" {
		return discovery.Peers{}, errNothingSaved
	}
	data, err := os.ReadFile(filepath.Join(l.Dir, peersFile))
	if errors.Is(err, fs.ErrNotExist) {
		return discovery.Peers{}, errNothingSaved
	}
	var k savedPeers
	if err == nil {
		err = json.Unmarshal(data, &k)
	}
	if err == nil {
		err = k.Peers.Validate()
	}
	switch {
	case err != nil:
	case k.ID != l.ID:
		err = fmt.Errorf("it is of %s, not of %s", k.ID, l.ID)
	case now.Sub(k.Saved) > MaxAge:
		err = fmt.Errorf("saved %s, which is more than %s ago", k.Saved.Format(time.RFC3339), MaxAge)
	}
	if err != nil {
		return discovery.Peers{}, fmt.Errorf("read list of peers: %w", err)
	}
	return k.Peers, nil
}

// takePeers puts a list of peers that the source has sent in force, and saves it. If the source sends a problem without
// a list, the list in force stays, with that problem.
func (f *Follower) takePeers(p discovery.Peers) {
	if f.opt.Peers == nil {
		return
	}
	if p.Problem != "" {
		f.opt.Log.Info("config source sends no keys for forwarding between pods", "problem", p.Problem)
		f.peers.Problem = p.Problem
		f.opt.Peers(f.peers)
		return
	}
	f.opt.Log.Debug("pods of the Gateway for forwarding", "pods", len(p.Pods), "generation", p.Generation)
	f.peers = p
	f.opt.Peers(p)
	if err := f.opt.Last.SavePeers(p, time.Now()); err != nil {
		f.opt.Log.Warn("cannot save the list of peers", "error", err)
	}
}

// loadPeers puts the saved list of peers in force.
func (f *Follower) loadPeers() {
	if f.opt.Peers == nil || len(f.peers.Keys) > 0 {
		return
	}
	p, err := f.opt.Last.LoadPeers(time.Now())
	switch {
	case errors.Is(err, errNothingSaved):
	case err != nil:
		f.opt.Log.Warn("cannot use the saved list of peers", "error", err)
	default:
		p.Problem = f.peers.Problem
		f.peers = p
		f.opt.Peers(p)
	}
}

// self returns the Peer and Sender of a report.
func (f *Follower) self() (address, sender string) {
	if f.opt.Self == nil {
		return "", ""
	}
	return f.opt.Self()
}
