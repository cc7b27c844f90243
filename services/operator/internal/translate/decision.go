package translate

// Decision is the decision of a translation about a Gateway as a whole. It alone determines how a provider handles the
// config, the objects and the status of the Gateway. Only Foreign and Gone remove anything.
type Decision string

const (
	// Served means that Result.Config is published, and Result.Objects replace the objects of the Gateway. The status
	// is written.
	Served Decision = "served"
	// Held means that a problem makes the new config doubtful, see gatewayRules. The published config and the objects
	// stay unchanged; only missing objects of Result.Skeleton may be created. The status is written.
	Held Decision = "held"
	// Classless means that the GatewayClass does not exist. The published config and the objects stay unchanged,
	// because a class that was deleted by mistake must not end calls. No status is written, because it is unknown which
	// controller the Gateway belongs to.
	Classless Decision = "classless"
	// Foreign means that the GatewayClass belongs to another controller. The config is withdrawn, and the objects that
	// were generated for it are deleted. Objects and status of the other controller stay unchanged.
	Foreign Decision = "foreign"
	// Gone means that the Gateway does not exist. The config is withdrawn, and the objects are deleted; in a cluster,
	// Kubernetes garbage-collects them. There is no status.
	Gone Decision = "gone"
)

// Ours reports whether the Gateway belongs to this controller, so that its status is written.
func (d Decision) Ours() bool { return d == Served || d == Held }

// Ends reports whether the config of the Gateway is withdrawn and its objects are deleted.
func (d Decision) Ends() bool { return d == Foreign || d == Gone }
