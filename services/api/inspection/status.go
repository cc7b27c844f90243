package inspection

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// States of a dataplane in its status.
const (
	Ready       = "READY"
	NotReady    = "NOT-READY"
	Terminating = "TERMINATING"
)

// Status is the status of a dataplane. Secrets in it are redacted.
type Status struct {
	Version         string           `json:"version"`
	Admin           AdminStatus      `json:"admin"`
	Auth            config.Auth      `json:"auth"`
	Listeners       []ListenerStatus `json:"listeners"`
	Clusters        []ClusterStatus  `json:"clusters"`
	AllocationCount int              `json:"allocationCount"`
	Status          string           `json:"status"`
	// Revision is the revision of the last applied config, as its source published it.
	Revision string `json:"revision"`
	// Failures contains, for each listener that does not run as configured, the reason.
	Failures map[string]string `json:"failures,omitempty"`
	// LostAddresses are relay addresses that the host has no longer, although it had them since the process started.
	LostAddresses []string `json:"lostAddresses,omitempty"`
	// Warnings lists the fields of the running config that are not in force as requested. The rest of the config is.
	Warnings []string `json:"warnings,omitempty"`
	// Offload describes how media is forwarded in the kernel.
	Offload OffloadStatus `json:"offload"`
	// Forwarding describes how datagrams are forwarded between the pods of the Gateway. It is nil for a process without
	// other pods.
	Forwarding *ForwardingStatus `json:"forwarding,omitempty"`
	// Journal is the state of the session journal. It is nil if the process has no state folder.
	Journal *JournalStatus `json:"journal,omitempty"`
	// Media contains the packet counts of calls. It is nil for an earlier release.
	Media *Media `json:"media,omitempty"`
	// Problem is the reason why the last received config was rejected, or else why the running config is only partly in
	// force.
	Problem string `json:"problem,omitempty"`
	// Lost is the error of the connection to the config source.
	Lost string `json:"lost,omitempty"`
	// Origin names the source of the running config.
	Origin string `json:"origin,omitempty"`
	// Unknown lists the fields of the last config that this release does not define. They are ignored.
	Unknown []string `json:"unknownFields,omitempty"`
	// Withheld is set if a part of the status is left out. It says why, and how to get the whole status.
	Withheld string `json:"withheld,omitempty"`
	// Pod is the name of the process in reports.
	Pod string `json:"pod,omitempty"`
	// Program is the program with its version, Go version and commit. Version is the version of the config.
	Program string `json:"program,omitempty"`
	// Started is when the process started.
	Started time.Time `json:"started,omitzero"`
	// Now is the time of the process's clock.
	Now time.Time `json:"now,omitzero"`
	// Capacity is the maximum number of allocations and reserved ports; 0 means no maximum.
	Capacity int `json:"capacity,omitempty"`
	// CapacityLimit is a text about the limit of the process, such as its file descriptors, from which Capacity was
	// computed at the start.
	CapacityLimit string `json:"capacityLimit,omitempty"`
	// Draining is set after SIGTERM: the process refuses new allocations.
	Draining bool `json:"draining,omitempty"`
	// Drain is set while the process drains.
	Drain *DrainStatus `json:"drain,omitempty"`
	// Config is the state of the running config. It repeats Revision, Origin and Lost.
	Config ConfigStatus `json:"config,omitzero"`
}

// Reduced returns the status for callers that may not see names, addresses and user names. It contains version, status,
// revision and the number of allocations. The other fields are empty. The note becomes Withheld.
func (s Status) Reduced(note string) Status {
	return Status{
		Version: s.Version, Status: s.Status, Revision: s.Revision, AllocationCount: s.AllocationCount,
		Listeners: []ListenerStatus{}, Clusters: []ClusterStatus{}, Withheld: note,
	}
}

// ConfigStatus is the state of the running config and of the connection to its source.
type ConfigStatus struct {
	// Revision is the revision of the running config, as its source published it.
	Revision string `json:"revision,omitempty"`
	// Origin names the source of the running config.
	Origin string `json:"origin,omitempty"`
	// Age is the time since the last contact with the source, in seconds; 0 while the source is connected.
	Age float64 `json:"age_seconds"`
	// Rejected is why the last received config was rejected.
	Rejected string `json:"rejected,omitempty"`
	// Lost is the error of the connection to the source.
	Lost string `json:"lost,omitempty"`
}

// AdminStatus is the admin part of Status.
type AdminStatus struct {
	Name                string `json:"name"`
	LogLevel            string `json:"loglevel"`
	MetricsEndpoint     string `json:"metrics_endpoint"`
	HealthcheckEndpoint string `json:"healthcheck_endpoint"`
	Quota               string `json:"quota"`
	Offload             string `json:"offload"`
	Licensing           string `json:"licensing_info"`
}

// ListenerStatus is the config of a listener, its traffic and its certificates.
type ListenerStatus struct {
	config.Listener
	Stats Stats `json:"stats"`
	// Certificate is the certificate that a TLS or DTLS listener serves to clients without a server name (SNI).
	Certificate *Certificate `json:"certificate,omitempty"`
	// OtherCertificates are the certificates that the listener serves to clients with one of their server names.
	OtherCertificates []Certificate `json:"otherCertificates,omitempty"`
}

// AllCertificates returns Certificate and OtherCertificates.
func (l ListenerStatus) AllCertificates() []Certificate {
	if l.Certificate == nil {
		return l.OtherCertificates
	}
	return append([]Certificate{*l.Certificate}, l.OtherCertificates...)
}

// Certificate describes a certificate in use.
type Certificate struct {
	Subject string `json:"subject"`
	// Names are the DNS names and IP addresses of the certificate.
	Names     []string  `json:"names,omitempty"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
	Issuer    string    `json:"issuer"`
	// SelfSigned is set if the certificate was signed with its own key.
	SelfSigned bool `json:"selfSigned,omitempty"`
}

// ClusterStatus is the config of a cluster and its traffic.
type ClusterStatus struct {
	config.Cluster
	Stats Stats `json:"stats"`
}

// Stats counts the received and sent traffic.
type Stats struct {
	Rx Count `json:"rx"`
	Tx Count `json:"tx"`
}

// Count is a number of packets and bytes.
type Count struct {
	Packets uint64 `json:"pkts"`
	Bytes   uint64 `json:"bytes"`
	// Timestamp is when the counters were read, in nanoseconds since 1970, so that a client can compute a rate from two
	// statuses.
	Timestamp int64 `json:"timestamp"`
}

// OffloadStatus describes how media is forwarded in the kernel.
type OffloadStatus struct {
	// Engine is the engine of the config: None, TC, XDP or Auto.
	Engine string `json:"engine"`
	// Mechanism is None, TCX, clsact, or XDP if all interfaces have the program in their driver too.
	Mechanism string `json:"mechanism"`
	// Reason says why packets are not forwarded in the kernel, or not as the config requests.
	Reason     string   `json:"reason,omitempty"`
	Interfaces []string `json:"interfaces,omitempty"`
	// Bindings is the number of channel bindings that the kernel may forward.
	Bindings    int `json:"bindings"`
	MaxBindings int `json:"maxBindings"`
	// Exhausted counts the attempts to add a channel binding while MaxBindings were in use. The media of these channels
	// stays in user space, and there is another attempt 10 s later.
	Exhausted uint64 `json:"exhausted,omitempty"`
}

// DrainStatus reports which sessions of a draining pod have moved to other pods.
type DrainStatus struct {
	// Moved is the number of sessions that other pods have, and that do not need this pod any more.
	Moved int `json:"moved"`
	// Stay is the number of sessions that need this pod, by reason: TCP, TLS, DTLS, StaysForPeer or StaysForPod.
	Stay map[string]int `json:"stay,omitempty"`
}

// Reasons for which sessions over UDP need a draining pod.
const (
	// StaysForPeer: a peer has not taken the relay address of another pod, or is not known to use ICE.
	StaysForPeer = "peer"
	// StaysForPod: no other pod accepts the session.
	StaysForPod = "no pod"
)

// String returns the status in the form "40 moved, 3 stay (2 TCP, 1 peer)".
func (s DrainStatus) String() string {
	reasons, total := make([]string, 0, len(s.Stay)), 0
	for _, why := range slices.Sorted(maps.Keys(s.Stay)) {
		reasons, total = append(reasons, fmt.Sprintf("%d %s", s.Stay[why], why)), total+s.Stay[why]
	}
	if total == 0 {
		return fmt.Sprintf("%d moved", s.Moved)
	}
	return fmt.Sprintf("%d moved, %d stay (%s)", s.Moved, total, strings.Join(reasons, ", "))
}

// ForwardingStatus describes how datagrams of clients are forwarded between the pods of a Gateway. The front of a
// client is the pod at which its datagrams arrive, and the owner is the pod that has its session. The counters count
// since the start.
type ForwardingStatus struct {
	// Problem is why nothing is forwarded, or why nothing is forwarded between some of the pods.
	Problem string `json:"problem,omitempty"`
	// Peers is the number of other pods.
	Peers int `json:"peers"`
	// Clients is the number of clients whose front is this pod and whose owner is another pod.
	Clients int `json:"clients"`
	// Passed counts datagrams that this pod has forwarded to the owners of the sessions. Answered counts the answers of
	// owners that it has sent to clients.
	Passed   uint64 `json:"passed"`
	Answered uint64 `json:"answered"`
	// Delivered counts datagrams that this pod, as the owner, has received from other pods. Replied counts the answers
	// that it has sent to those pods.
	Delivered uint64 `json:"delivered"`
	Replied   uint64 `json:"replied"`
	// Unknown counts datagrams of clients without an owner. Limited counts datagrams that were dropped because too many
	// clients without a session have sent datagrams.
	Unknown uint64 `json:"unknown"`
	Limited uint64 `json:"limited"`
	// Adopted counts the sessions that this pod has handed over to the pods at which the datagrams of their clients
	// arrive.
	Adopted uint64 `json:"adopted"`
	// Copies is the number of sessions of other pods of which this pod has a copy.
	Copies int `json:"copies"`
	// Refused counts dropped datagrams of other pods by reason.
	Refused map[string]uint64 `json:"refused,omitempty"`
}

// JournalStatus is the state of the journal in which a process stores its sessions, so that they continue after a
// crash.
type JournalStatus struct {
	// Problem says why sessions are not stored. It is empty if they are.
	Problem string `json:"problem,omitempty"`
	// Bytes is the size of the journal.
	Bytes int64 `json:"bytes"`
	// Sessions is the number of sessions in the journal.
	Sessions int `json:"sessions"`
	// Errors is the number of writes that failed or took too long, and of journals that were set aside.
	Errors uint64 `json:"errors,omitempty"`
	// Refused is the number of changes that were not stored because the user and the address of the client store more
	// than their share of the volume.
	Refused uint64 `json:"refused,omitempty"`
	// Lost is the number of sessions that continue but are not in the journal because of errors, or because the user
	// and the address of the client store more than their share.
	Lost uint64 `json:"lost,omitempty"`
	// Restored is the number of sessions of a previous process that this process continues or has continued.
	Restored uint64 `json:"restored"`
	// Dropped is the number of sessions of a previous process that could not be continued.
	Dropped uint64 `json:"dropped"`
}
