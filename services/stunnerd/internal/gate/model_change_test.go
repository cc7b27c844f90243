package gate

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// timePasses advances the clock by whole seconds, often to a moment near the next deadline.
func (m *trial) timePasses(*actor) outcome {
	seconds := 1 + m.rng.IntN(pick(m, 10, 100, 400))
	if m.often(40) {
		rest := int(time.Until(m.deadline()) / time.Second)
		if rest > 0 && rest <= 400 {
			seconds = rest + m.rng.IntN(2)
		}
	}
	time.Sleep(time.Duration(seconds) * time.Second)
	m.expire()
	return m.said(outcome{name: "time"}, "%d s pass", seconds)
}

// deadline returns the end of a random item of the model.
func (m *trial) deadline() time.Time {
	var all []time.Time
	for _, a := range m.actors {
		if a.alloc == nil {
			continue
		}
		all = append(all, a.alloc.ends)
		for _, ends := range a.alloc.permissions {
			all = append(all, ends)
		}
		for _, b := range a.alloc.channels {
			all = append(all, b.ends)
		}
	}
	for _, r := range m.reserved {
		all = append(all, r.ends)
	}
	if len(all) == 0 {
		return time.Time{}
	}
	slices.SortFunc(all, time.Time.Compare) // the result must depend on the seed only, and not on the order of maps
	return pick(m, all...)
}

func (m *trial) configChanges(*actor) outcome {
	what := ""
	switch m.rng.IntN(6) {
	case 0:
		m.former = append(m.former, former{m.password, time.Now().Add(600 * time.Second)})
		m.password = fmt.Sprint("password ", len(m.former))
		what = "the password"
	case 1:
		m.grace = pick[time.Duration](m, 0, 0, 300*time.Second)
		what = fmt.Sprint("grace to ", m.grace)
	case 2:
		m.bounds.UserSessions, m.bounds.SourceSessions = pick(m, 0, 0, 1, 2), pick(m, 0, 0, 1, 2)
		what = fmt.Sprintf("bounds to %+v", m.bounds)
	case 3:
		m.bounds.Capacity[session.RelayPorts] = pick(m, int64(0), 0, 0, 3)
		what = fmt.Sprint("capacity to ", m.bounds.Capacity[session.RelayPorts])
	case 4:
		if m.retired = m.often(15); m.retired {
			m.Retire()
		} else {
			m.Resume()
		}
		what = fmt.Sprint("retired to ", m.retired)
	default:
		route := pick(m, "a", "b", "c")
		m.routes[route] = !m.routes[route]
		what = fmt.Sprintf("route %s to %t", route, m.routes[route])
	}
	m.configure()
	return m.said(outcome{name: "config"}, "config changes %s", what)
}

func (m *trial) hangUp(a *actor) outcome {
	m.Disconnected(a)
	a.alloc = nil
	return m.said(outcome{name: "hang-up"}, "%s hangs up", a.name)
}

// garbage sends messages that are never answered: noise and responses.
func (m *trial) garbage(a *actor) outcome {
	raw := binary.BigEndian.AppendUint64(make([]byte, 12+4*m.rng.IntN(10)), m.rng.Uint64())
	if m.often(50) {
		raw = m.build(stun.NewType(stun.MethodAllocate, stun.ClassSuccessResponse))
	}
	m.Receive(raw, a)
	return m.said(outcome{name: "noise"}, "%s sends noise", a.name)
}

func (m *trial) binding(a *actor) outcome {
	req, err := stun.Build(stun.TransactionID, stun.BindingRequest)
	if err != nil {
		m.t.Fatal(err)
	}
	code := stun.ErrorCode(0)
	if !m.answers(a, time.Second/100) {
		code = silence
	}
	m.Receive(req.Raw, a)
	return m.said(m.answered(a, stun.MethodBinding, req, code, nil, func(answer *stun.Message) error {
		var mapped stun.XORMappedAddress
		if err := mapped.GetFrom(answer); err != nil || mapped.String() != a.addr.String() {
			return fmt.Errorf("mapped address %s, %w", mapped, err)
		}
		return nil
	}), "%s asks for its address", a.name)
}
