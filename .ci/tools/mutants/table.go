package main

// Folders of packages.
const (
	stunnerd   = "services/stunnerd/internal/"
	operator   = "services/operator/internal/"
	auth       = "services/auth/internal/"
	api        = "services/api/"
	stunnerctl = "services/stunnerctl/internal/"
	dashboards = "dashboards/"
	clients    = "clients/go/iceservers/"
)

// table lists the mutants by package. A new rule that must never break gets a mutant here. Prefer a fast test of the
// same package; a test of e2e is for rules that only whole programs show.
var table = []mutant{
	// The dataplane.
	{
		rule: "A process does not run on the probes of another one",
		file: "services/stunnerd/run.go", pkg: "services/stunnerd", test: "TestProcessEndsIfItsProbePortIsInUse",
		before: `if !o.watch {
		return endpoints, nil`,
		after: `if o.watch {
		return endpoints, nil`,
	},
	{
		rule: "A nonce that is invalid or too old is not accepted",
		file: stunnerd + "gate/admit.go", pkg: stunnerd + "gate", test: "TestNonceLastsAnHour",
		before: `if foreign || !g.nonces.Valid(sent, r.client.Addr().Addr(), time.Now()) {`,
		after:  `if foreign || !g.nonces.Valid(sent, r.client.Addr().Addr(), time.Now()) && len(sent) == 0 {`,
	},
	{
		rule: "An Allocate request needs a nonce of the pod at which it arrives",
		file: stunnerd + "gate/admit.go", pkg: stunnerd + "server", test: "TestCallsBetweenPods",
		before: `foreign := r.Type.Method == stun.MethodAllocate && !g.nonces.Own(sent)`,
		after:  `foreign := r.Type.Method == stun.MethodAllocate && len(sent) == 0`,
	},
	{
		rule: "An allocation obeys its own user only",
		file: stunnerd + "gate/admit.go", pkg: stunnerd + "gate", test: "TestAnotherUserCannotTouchAnAllocation",
		before: `refuseIf(r.username != r.flow.Username,`,
		after:  `refuseIf(false,`,
	},
	{
		rule: "An expired credential starts no session",
		file: stunnerd + "gate/admit.go", pkg: stunnerd + "gate", test: "TestExpiredCredentialRefreshesOnlyWithinTheGrace",
		before: `case errors.Is(err, credential.ErrExpired) && !g.inGrace(r, known, policy, now):`,
		after:  `case errors.Is(err, credential.ErrExpired) && known.Key == nil:`,
	},
	{
		rule: "A credential is good for its own Gateway only",
		file: stunnerd + "gate/admit.go", pkg: stunnerd + "gate", test: "TestCaveatsOfAnAllocate",
		before: `known.Caveats.Gateway != policy.Gateway:`,
		after:  `known.Caveats.Gateway == "" && policy.Gateway != "":`,
	},
	{
		rule: "A caveat that is not known refuses the credential",
		file: stunnerd + "gate/admit.go", pkg: stunnerd + "gate", test: "TestCaveatsOfAnAllocate",
		before: `refuseIf(errors.Is(err, credential.ErrCaveatUnknown),`,
		after:  `refuseIf(errors.Is(err, credential.ErrExpired),`,
	},
	{
		rule: "A credential reaches the peers of the routes that it names only",
		file: stunnerd + "cluster/cluster.go", pkg: stunnerd + "gate", test: "TestCaveatOfRoutes",
		before: `if v.only != nil && !slices.Contains(v.only, g.cluster.name) {`,
		after:  `if v.only != nil && g.cluster.name == "" {`,
	},
	{
		rule: "The routes of a credential are those of the present config",
		file: stunnerd + "relay/relay.go", pkg: stunnerd + "gate", test: "TestCaveatOfRoutesWhenEndpointsChange",
		before: `n != nil && n.whole == whole {`,
		after:  `n != nil {`,
	},
	{
		rule: "A restored session keeps the caveats of its credential",
		file: stunnerd + "gate/restore.go", pkg: stunnerd + "gate", test: "TestRestoredSessionKeepsItsCaveats",
		before: `UserID: name.UserID, Caveats: name.Caveats,`,
		after:  `UserID: name.UserID,`,
	},
	{
		rule: "The bytes of a credential are not new with each session",
		file: stunnerd + "session/allowance.go", pkg: stunnerd + "session", test: "TestAllowanceOutlivesSessions",
		before: `a != nil && a.used.Load() >= c.Bytes {`,
		after:  `a != nil && a.used.Load() < 0 {`,
	},
	{
		rule: "Caveats in a wrong place of a user name are not lost",
		file: api + "credential/username.go", pkg: api + "credential", test: "TestVerifyCaveats",
		before: `if strays > 0 {`,
		after:  `if strays < 0 {`,
	},
	{
		rule: "A policy file that is still being written is not used",
		file: auth + "yamlfile/yamlfile.go", pkg: auth + "access", test: "TestPolicyFileIsWrittenInPlace",
		before: `return twice && (c.used == nil`,
		after:  `return (twice || c.seen != nil) && (c.used == nil`,
	},
	{
		rule: "The trace context of a stranger is no parent",
		file: auth + "rest/trace.go", pkg: auth + "rest", test: "TestParentOfSpan",
		before: `case callOf(ctx).viaProxy:`,
		after:  `case callOf(ctx).id != "":`,
	},
	{
		rule: "The scope of a request does not widen that of the token",
		file: auth + "rest/server.go", pkg: auth + "rest", test: "TestScopeOfAToken",
		before: `d.caveats.Narrow(who.Caveats);`,
		after:  `d.caveats.Narrow(credential.Caveats{});`,
	},
	{
		rule: "A source that guesses passwords is locked out",
		file: stunnerd + "gate/admit.go", pkg: stunnerd + "gate", test: "TestGuessingIsLockedForAMinute",
		before: `!g.policy.Load().Authority.Guessable(string(name)) || g.limits.MayCompare(r.limited())`,
		after:  `!g.policy.Load().Authority.Guessable(string(name)) || r.client != nil`,
	},
	{
		rule: "A permission needs a route that allows its peer",
		file: stunnerd + "gate/admit.go", pkg: stunnerd + "gate", test: "TestEveryRefusalHasItsCode",
		before: `if view.Permits(p) {`,
		after:  `if view != nil {`,
	},
	{
		rule: "A user gets no more sessions than its quota",
		file: stunnerd + "session/session.go", pkg: stunnerd + "session", test: "TestQuotaHoldsForRequestsInFlight",
		before: `user.held[RelayPorts] >= int64(b.UserSessions)`,
		after:  `user.held[RelayPorts] > int64(b.UserSessions)`,
	},
	{
		rule: "The last fifth of the capacity is for clients with few sessions",
		file: stunnerd + "session/ledger.go", pkg: stunnerd + "session",
		test:   "TestTheLastFifthIsForUsersWithFewSessions",
		before: `return user && network && session }`,
		after:  `return false }`,
	},
	{
		rule: "The last tenth of the capacity is for clients at addresses with few sessions",
		file: stunnerd + "session/ledger.go", pkg: stunnerd + "session",
		test:   "TestTheLastFifthIsForUsersWithFewSessions",
		before: `return network }`,
		after:  `return false }`,
	},
	{
		rule: "Permissions and channels need memory that their client may have",
		file: stunnerd + "gate/permission.go", pkg: stunnerd + "gate", test: "TestOneUserDoesNotTakeTheMemory",
		before: `return p.memory.Set(session.PriceOfMore(all, channels))`,
		after:  `return nil`,
	},
	{
		rule: "One user does not take all slots of the kernel",
		file: stunnerd + "offload/table.go", pkg: stunnerd + "relay", test: "TestOneUserDoesNotTakeAllSlots",
		before: `if e.Share != nil && e.Share.Add(1) != nil {`,
		after:  `if e.Share != nil && e.Share.Add(1) != nil && t.closed {`,
	},
	{
		rule: "A frame between pods is accepted once",
		file: stunnerd + "forward/window.go", pkg: stunnerd + "forward", test: "TestWindow",
		before: `return w.seen[counter/64%words]&(1<<(counter%64)) == 0`,
		after:  `return true`,
	},
	{
		rule: "A pod that ends soon stores no owners of clients",
		file: stunnerd + "forward/peers.go", pkg: stunnerd + "forward", test: "TestChangesOfTheList",
		before: `peer.Draining {`,
		after:  `len(draining) > 1000 {`,
	},
	{
		rule: "Data with the address of a client, which may be forged, takes no path from it",
		file: stunnerd + "listener/paths.go", pkg: stunnerd + "listener", test: "TestPathsOfAClient",
		before: `return used, p.path(front, now)`,
		after:  `return p.path(front, now), nil`,
	},
	{
		rule: "A damaged entry of the journal restores no session",
		file: stunnerd + "journal/replay.go", pkg: stunnerd + "journal", test: "TestDamagedJournalWithoutRoom",
		before: `len(payload) == 0 || checksum(frame[:2], payload) != sum ||`,
		after:  `len(payload) == 0 || sum == 0 ||`,
	},
	{
		rule: "A session that has ended is not restored from the journal",
		file: stunnerd + "journal/replay.go", pkg: stunnerd + "journal", test: "TestEntryOfALaterRelease",
		before: `delete(s.sessions, id)`,
		after:  `delete(s.sessions, 0)`,
	},
	{
		rule: "A flood of silent connections closes its own connections first",
		file: stunnerd + "listener/connlimit.go", pkg: stunnerd + "listener", test: "TestAFullLimitEvictsTheOldestConnection",
		before: `c.sources[p.source].Len() >= share {`,
		after:  `c.sources[p.source].Len() <= share {`,
	},
	{
		rule: "A plain record of DTLS is dropped after the handshake",
		file: stunnerd + "listener/association.go", pkg: stunnerd + "listener", test: "TestForgedRecordsEndNoCall",
		before: `case epoch == 0 && established,`,
		after:  `case epoch == 0 && established && kind != typeApplicationData,`,
	},
	{
		rule: "A forged record does not end a DTLS handshake",
		file: stunnerd + "listener/association.go", pkg: stunnerd + "listener", test: "TestForgedRecordsEndNoHandshake",
		before: `if epoch == 0 && !a.continues(record) {`,
		after:  `if epoch == 0 && !a.continues(record) && established {`,
	},
	{
		rule: "A frame longer than the limit ends its stream",
		file: stunnerd + "listener/frame.go", pkg: stunnerd + "listener", test: "TestTooLongFrameEndsTheStream",
		before: `if size > limit {`,
		after:  `if size > 2*limit {`,
	},
	{
		rule: "The listeners of a pod are no peers of its clients",
		file: stunnerd + "cluster/cluster.go", pkg: stunnerd + "cluster", test: "TestOwnListenersAreDeniedAsPeers",
		before: `if v.self.at(addr, peer.Port()) {`,
		after:  `if !addr.IsValid() {`,
	},
	{
		rule: "A wide route does not reach special addresses",
		file: stunnerd + "cluster/cluster.go", pkg: stunnerd + "cluster", test: "TestWideRoutesDoNotReachSpecialPrefixes",
		before: `if bits < minBits {`,
		after:  `if bits < 0 {`,
	},
	{
		rule: "A denied backend is not reached through a prefix",
		file: stunnerd + "cluster/cluster.go", pkg: stunnerd + "cluster", test: "TestExceptedAddressesAreNotReachedThroughAPrefix",
		before: `g.cluster.except[addr]; excepted {`,
		after:  `g.cluster.except[addr]; excepted && port == 0 {`,
	},
	{
		rule: "A session does not leave its pod while a peer may use the socket of an earlier pod",
		file: stunnerd + "relay/move.go", pkg: stunnerd + "relay", test: "TestSessionStaysDuringAMove",
		before: `if r.moving.Load() != nil {
		return nil, false`,
		after: `if r.moving.Load() == nil {
		return nil, false`,
	},
	{
		rule: "A queued datagram of a peer that no route allows any more is dropped",
		file: stunnerd + "relay/toclient.go", pkg: stunnerd + "relay", test: "TestRoutesHoldForQueuedDatagrams",
		before: `name, reached := r.View().Match(d.peer)`,
		after:  `name, reached := "", cluster.Allowed`,
	},
	{
		rule: "A nonce is valid for the address that it was made for",
		file: stunnerd + "nonce/nonce.go", pkg: stunnerd + "nonce", test: "TestNonceIsBoundToClientAndHour",
		before: `h.Write(addr[:])`,
		after:  `h.Write(addr[:1])`,
	},
	{
		rule: "A nonce ends after its lifetime",
		file: stunnerd + "nonce/nonce.go", pkg: stunnerd + "nonce", test: "TestNonceLivesAsLongAsConfigured",
		before: `age <= n.Lifetime`,
		after:  `age <= 2*n.Lifetime`,
	},
	{
		rule: "All private sources together have one limit of answers",
		file: stunnerd + "limit/limiter.go", pkg: stunnerd + "limit", test: "TestPrivateSourcesAreLimitedTogether",
		before: `if l.private(source) {`,
		after:  `if l.private(source) && source.Is6() {`,
	},
	{
		rule: "Refusals of one reason do not displace those of other reasons",
		file: stunnerd + "meter/recent.go", pkg: stunnerd + "meter", test: "TestReasonHasAtMostItsShare",
		before: `case held >= recentShare:`,
		after:  `case held >= recentSize:`,
	},
	{
		rule: "A listener that changes its protocol gets a new socket",
		file: stunnerd + "server/plan.go", pkg: stunnerd + "server", test: "TestPlanListsChangesOfSockets",
		before: `case was.Port != l.Port || was.Protocol != l.Protocol:`,
		after:  `case was.Port != l.Port:`,
	},
	{
		rule: "A draining process starts no session",
		file: stunnerd + "gate/admit.go", pkg: stunnerd + "server", test: "TestDrainingRefusesNewCallsAndKeepsLiveOnes",
		before: `g.retiring.Load() || g.table.Refuses(stays)`,
		after:  `g.retiring.Load() || stays && false`,
	},
	{
		rule: "A config from disk gets no younger by a start",
		file: stunnerd + "follower/follower.go", pkg: stunnerd + "follower", test: "TestStartDoesNotRenewTheAgeOfAConfig",
		before: `due := st.current && (`,
		after:  `due := st.wanted != nil && (`,
	},
	{
		rule: "An invalid config leaves the last good one in force",
		file: stunnerd + "follower/follower.go", pkg: stunnerd + "follower", test: "TestRejectedConfigChangesNothingAndIsReported",
		before: `f.status.rejected, f.status.current = e.Err.Error(), false`,
		after:  `f.status.wanted, f.status.rejected, f.status.current = nil, e.Err.Error(), false`,
	},

	// The documents and protocols that the services share.
	{
		rule: "Validate finds a negative quota",
		file: api + "config/validate.go", pkg: api + "config", test: "TestValidate",
		before: `if n < 0 {`,
		after:  `if n < -1 {`,
	},
	{
		rule: "An auth service receives no private key",
		file: api + "config/forauth.go", pkg: api + "config", test: "TestForAuth",
		before: `next.Cert, next.Key = KeyWithheld, KeyWithheld`,
		after:  `next.Cert, next.Key = KeyWithheld, l.Key`,
	},
	{
		rule: "A pod reports about itself only",
		file: api + "discovery/grant.go", pkg: api + "discovery", test: "TestAPodReportsOnlyAboutItself",
		before: `g.Pod == "" || r.Pod == g.Pod && r.ID == g.ID`,
		after:  `g.Pod == "" || r.ID == g.ID`,
	},
	{
		rule: "A reader gets the configs of its grant only",
		file: api + "discovery/grant.go", pkg: api + "discovery", test: "TestReadersGetGrantedConfigsOnly",
		before: `want.one() && string(want) == g.ID`,
		after:  `want.one()`,
	},
	{
		rule: "A token is not sent to the target of a redirect",
		file: api + "discovery/client.go", pkg: api + "discovery", test: "TestTokenDoesNotFollowRedirects",
		before: `CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },`,
		after:  `CheckRedirect: nil,`,
	},
	{
		rule: "A credential ends to the second",
		file: api + "credential/credential.go", pkg: api + "credential", test: "TestVerify/expired",
		before: `now.After(name.Expires.Add(leeway)):`,
		after:  `now.After(name.Expires.Add(leeway + time.Minute)):`,
	},
	{
		rule: "A secret does not show in a log",
		file: api + "credential/credential.go", pkg: api + "credential", test: "TestSecretsDoNotShow",
		before: `slog.StringValue(s.String())`,
		after:  `slog.StringValue(string(s))`,
	},

	// The operator.
	{
		rule: "No two pods of a Gateway share the ports of a node",
		file: operator + "manifest/pod.go", pkg: operator + "manifest", test: "TestPodsThatShareTheHostAreReplacedInPlace",
		before: `*terms = append(*terms, corev1.PodAffinityTerm{LabelSelector: selector(o), TopologyKey: corev1.LabelHostname})`,
		after:  `*terms = append(*terms, corev1.PodAffinityTerm{LabelSelector: selector(o), TopologyKey: corev1.LabelTopologyZone})`,
	},
	{
		rule: "A pod in the host network ends before the next one starts",
		file: operator + "manifest/workload.go", pkg: operator + "manifest", test: "TestPodsThatShareTheHostAreReplacedInPlace",
		before: `MaxSurge: new(intstr.FromInt32(0)),`,
		after:  `MaxSurge: new(intstr.FromInt32(1)),`,
	},
	{
		rule: "A Gateway takes no port of an older one on the same nodes",
		file: operator + "translate/hostports.go", pkg: operator + "translate",
		test:   "TestTranslate/gateways_in_the_host_network_share_the_ports_of_their_nodes",
		before: `if user, clash := taken[hostPort{Network: l.network(), Number: l.target}]; clash {`,
		after:  `if user, clash := taken[hostPort{Network: l.network(), Number: l.target}]; clash && l.target == 0 {`,
	},
	{
		rule: "A listener takes no routes of other namespaces unless it allows them",
		file: operator + "translate/attach.go", pkg: operator + "translate",
		test:   "TestTranslate/a_route_from_another_namespace_is_refused_by_default",
		before: `return func(namespace string) bool { return namespace == m.gateway.Namespace }`,
		after:  `return func(namespace string) bool { return namespace != "" }`,
	},
	{
		rule: "A certificate of another namespace needs a ReferenceGrant",
		file: operator + "translate/certificate.go", pkg: operator + "translate",
		test:   "TestTranslate/a_certificate_of_another_namespace_needs_a_grant",
		before: `if !c.legacyGrants && !c.granted() {`,
		after:  `if !c.legacyGrants && c.key().Name == "" {`,
	},
	{
		rule: "A revoked certificate goes out of use",
		file: operator + "translate/held.go", pkg: operator + "translate", test: "TestAnUngrantedCertificateIsNotUsed",
		before: `return !l.served() && !l.revoked`,
		after:  `return !l.served()`,
	},
	{
		rule: "A namespace gets its equal share before others get more",
		file: operator + "share/share.go", pkg: operator + "share", test: "TestDivide",
		before: `p.dominantShare = p.used.Plus(p.next).dominantShare(limit)`,
		after:  `p.dominantShare = p.next.dominantShare(limit)`,
	},
	{
		rule: "A condition keeps its transition time until its status changes",
		file: operator + "condition/merge.go", pkg: operator + "condition",
		test:   "TestMergeMovesTheTransitionTimeOnlyOnATransition",
		before: `before != nil && before.Status == c.Status &&`,
		after:  `before != nil &&`,
	},
	{
		rule: "An object whose translation panics ends nothing else",
		file: operator + "translate/contain.go", pkg: operator + "kube", test: "TestPanicOfATranslationIsContained",
		before: `if cause = recover(); cause != nil {`,
		after:  `if cause = any(nil); cause != nil {`,
	},
	{
		rule: "The operator writes no object of another owner",
		file: operator + "kube/objects.go", pkg: operator + "kube", test: "TestObjectsOfOtherOwnersAreNotTakenOver",
		before: `if found && !sameOwner(live, o) {`,
		after:  `if found && !sameOwner(o, o) {`,
	},
	{
		rule: "An object stays until its replacement is written",
		file: operator + "kube/objects.go", pkg: operator + "kube",
		test:   "TestServingObjectsAreDeletedAfterTheirReplacementIsApplied",
		before: `return replaces(o, like) }) {`,
		after:  `return replaces(o, like) && len(kept) == 0 }) {`,
	},
	{
		rule: "The token of the auth service reads usage and nothing else of the inspection API",
		file: operator + "kube/inspection.go", pkg: operator + "kube", test: "TestInspectionNeedsATokenAndARight",
		before: `right.Is(inspect.UsageRight) && slices`,
		after:  `right.Verb == "get" && slices`,
	},

	// The auth service.
	{
		rule: "A pattern of a token matches namespace and name of a gateway",
		file: auth + "access/gateways.go", pkg: auth + "access", test: "TestPatterns",
		before: `return matches(p.namespace, namespace) && matches(p.name, name)`,
		after:  `return matches(p.namespace, namespace) || matches(p.name, name)`,
	},
	{
		rule: "A caller with usage: own does not read the usage of others",
		file: auth + "rest/usage.go", pkg: auth + "rest", test: "TestUsage",
		before: `case !who.MayReadUsage(*user):`,
		after:  `case *user == "" && !who.MayReadUsage(*user):`,
	},
	{
		rule: "A token that is too old is refused",
		file: auth + "access/claims.go", pkg: auth + "access", test: "TestJ04LongestAge",
		before: `> longest+leeway:`,
		after:  `> 2*longest+leeway:`,
	},
	{
		rule: "A config without its secrets does not replace one that has them",
		file: auth + "gateway/directory.go", pkg: auth + "gateway", test: "TestDirectoryRefusesHiddenSecrets",
		before: `if !g.STUNOnly && g.Authority.SharedSecret == "" && g.Authority.Username == "" {`,
		after:  `if g.STUNOnly && g.Authority.SharedSecret == "" && g.Authority.Username == "" {`,
	},
	{
		rule: "The forwarding header of a client that is no trusted proxy is ignored",
		file: auth + "rest/source.go", pkg: auth + "rest",
		test:   "TestAddressesAreLimited/what_nobody_is_trusted_to_say",
		before: `if err != nil || !holds(proxies, from) {`,
		after:  `if err != nil {`,
	},
	{
		rule: "A caller gets no credential for another user than that of its token",
		file: auth + "rest/check.go", pkg: auth + "rest", test: "TestJ07UserOfAToken",
		before: `if name != who.UserID && (who.Subject == "" || name != norm.NFC.String(who.Subject)) {`,
		after:  `if name == "" {`,
	},

	// Clients of the auth service.
	{
		rule: "A client gets no servers whose credentials have expired",
		file: clients + "source.go", pkg: clients, test: "TestBackoffIsBounded",
		before: `return a.lifetime == 0 || elapsed(a.sent) < a.lifetime-min(a.lifetime/4, longestSpare)`,
		after:  `return true`,
	},
	{
		rule: "Servers are renewed before their credentials expire",
		file: clients + "source.go", pkg: clients, test: "TestServersNeverExpire",
		before: `due := max(a.lifetime/2+rand.N(a.lifetime/6), shortestRenewal)`,
		after:  `due := 2 * max(a.lifetime, shortestRenewal) * time.Duration(1+rand.N(2))`,
	},
	{
		rule: "The lifetime of credentials does not depend on the clock of the client",
		file: clients + "request.go", pkg: clients, test: "TestServersNeverExpire",
		before: `a.lifetime = s.ExpiresAt.Sub(now) - time.Second`,
		after:  `a.lifetime = time.Until(*s.ExpiresAt) + 0*now.Sub(now)`,
	},

	// stunnerctl and monitoring.
	{
		rule: "stunnerctl diagnose finds a Deployment without replicas",
		file: stunnerctl + "diagnose/stagepods.go", pkg: stunnerctl + "diagnose", test: "TestFaults/no_replicas",
		before: `d.Spec.Replicas != nil && *d.Spec.Replicas == 0 {`,
		after:  `d.Spec.Replicas != nil && *d.Spec.Replicas < 0 {`,
	},
	{
		rule: "An alert reads a metric that a service exports",
		file: dashboards + "internal/alert/rules.go", pkg: "dashboards", test: "TestQueries",
		before: `Expr:        telemetry.JournalProblem + " == 1",`,
		after:  `Expr:        telemetry.JournalProblem + "s == 1",`,
	},
}
