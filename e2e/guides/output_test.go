package guides

// prints runs the commands of stunnerctl in the guide.
func (p *place) prints() {}
