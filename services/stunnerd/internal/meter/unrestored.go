package meter

// Unrestore counts sessions of a previous process that were not restored, and logs the reason.
func (m *Meter) Unrestore(why Reason, sessions int, n Note) {
	m.drops[why].Add(uint64(sessions))
	m.lines.Note(why, n)
}

// Unrestored returns the number of sessions that were not restored, by reason. It has all reasons.
func (m *Meter) Unrestored() map[string]uint64 {
	out := make(map[string]uint64)
	for _, r := range All() {
		if r.Family() == Restored {
			out[r.String()] = m.drops[r].Load()
		}
	}
	return out
}
