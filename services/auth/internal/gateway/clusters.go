package gateway

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/stunner-gateway/stunner/services/auth/internal/region"
)

// maxRegions is the maximum number of regions in an answer: the nearest region, and the next region in case the nearest
// one fails.
const maxRegions = 2

// Cluster is a cluster whose gateways the service serves.
type Cluster struct {
	region.Cluster
	*Directory
}

// usable returns an error if no credentials are given for gateways of the cluster.
func (c *Cluster) usable() error {
	if err := c.Ready(); err != nil {
		return err
	}
	if keep := time.Duration(c.Origin.Keep) * time.Second; keep > 0 && c.Age() > keep {
		return fmt.Errorf("config discovery is away for longer than the %s for which its configs are kept", keep)
	}
	return nil
}

// Clusters are all clusters of the service.
type Clusters []*Cluster

// Ready returns an error if no cluster can be used.
func (all Clusters) Ready() error { return all.oneOf((*Cluster).usable) }

// Synced returns an error if no cluster has reported all of its gateways; see Directory.Synced. One cluster is
// sufficient, so that an operator that is down does not keep the service unready.
func (all Clusters) Synced() error {
	return all.oneOf(func(c *Cluster) error { return c.Synced() })
}

// oneOf returns nil if check returns nil for a cluster, and otherwise the errors of all clusters.
func (all Clusters) oneOf(check func(*Cluster) error) error {
	var errs []error
	for _, c := range all {
		err := check(c)
		switch {
		case err == nil:
			return nil
		case c.Name != "":
			err = fmt.Errorf("cluster %s: %w", c.Name, err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Age returns the longest age of the configs of a cluster; see Directory.Age.
func (all Clusters) Age() (age time.Duration) {
	for _, c := range all {
		age = max(age, c.Directory.Age())
	}
	return age
}

// Ahead returns the largest difference to the clock of a cluster; see Directory.Ahead.
func (all Clusters) Ahead() (ahead time.Duration) {
	for _, c := range all {
		if d := c.Directory.Ahead(); d.Abs() > ahead.Abs() {
			ahead = d
		}
	}
	return ahead
}

// Preference determines the clusters whose gateways a caller gets. The zero value selects clusters in any order.
type Preference struct {
	// Regions are the regions, the nearest first.
	Regions []string
	// User selects one cluster of a region, so that a user gets the same cluster each time.
	User string
}

// Select returns the gateways that a filter selects and that keep retains. It returns the gateways of a cluster in the
// nearest region, followed by the gateways of a cluster in the next region, if there are any. The result must not be
// changed.
func (all Clusters) Select(f Filter, p Preference, keep func([]*Gateway) []*Gateway) []*Gateway {
	if len(all) == 1 {
		return keep(all[0].Directory.Select(f))
	}
	var out []*Gateway
	for regions, i := 0, 0; i < len(p.Regions) && regions < maxRegions; i++ {
		for _, c := range all.in(p.Regions[i], p.User) {
			if found := keep(c.Directory.Select(f)); len(found) > 0 {
				out = append(out, found...)
				regions++
				break
			}
		}
	}
	return out
}

// in returns the usable clusters of a region, sorted by turn for the user.
func (all Clusters) in(name, user string) (found []*Cluster) {
	for _, c := range all {
		if c.Region == name && c.usable() == nil {
			found = append(found, c)
		}
	}
	if len(found) > 1 {
		slices.SortStableFunc(found, func(a, b *Cluster) int { return cmp.Compare(a.turn(user), b.turn(user)) })
	}
	return found
}

// turn determines the order of the clusters for a user: the smallest value is first. Over many users, each cluster is
// first with a probability in proportion to its weight (weighted rendezvous hashing). The result is the same in each
// replica of the service.
func (c *Cluster) turn(user string) float64 {
	if c.Weight == 0 {
		return math.Inf(1)
	}
	sum := sha256.Sum256([]byte(c.Name + "\x00" + user))
	uniform := (float64(binary.BigEndian.Uint64(sum[:])>>11) + 0.5) / (1 << 53)
	return -math.Log(uniform) / float64(c.Weight)
}
