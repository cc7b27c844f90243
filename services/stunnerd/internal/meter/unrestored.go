package meter

// Unrestored is why a session of a former process was not restored. Its text is a value of a metric label.
type Unrestored uint8

const (
	// PortTaken means that the relay socket could not be opened on its port.
	PortTaken Unrestored = iota
	// NoListener means that the config has no UDP listener with the name and port of the session.
	NoListener
	// Expired means that the lifetime of the session was over.
	Expired
	// Failed means that the allocation could not be started.
	Failed
	unrestoredCount
)

var unrestored = [unrestoredCount]string{
	PortTaken: "port_taken", NoListener: "no_listener", Expired: "expired", Failed: "failed",
}

func (u Unrestored) String() string { return unrestored[u] }

// Unrestore counts sessions that were not restored.
func (m *Meter) Unrestore(why Unrestored, sessions int) { m.unrestored[why].Add(uint64(sessions)) }

// Unrestored returns the number of sessions that were not restored, by reason.
func (m *Meter) Unrestored() map[string]uint64 {
	out := make(map[string]uint64, len(unrestored))
	for why := range m.unrestored {
		out[Unrestored(why).String()] = m.unrestored[why].Load()
	}
	return out
}
