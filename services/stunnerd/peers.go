package main

import (
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/forward"
)

// self returns the fields Peer and Sender of a discovery.Report. They are empty if the process does not forward
// datagrams to other pods.
func (d *daemon) self() (address, sender string) {
	p := d.server.Peer()
	if !p.Address.IsValid() {
		return "", ""
	}
	return p.Address.String(), discovery.Sender(p.Sender).String()
}

// setPeers puts a list of the pods of the Gateway in force.
func (d *daemon) setPeers(list discovery.Peers) {
	peers := forward.Peers{Generation: list.Generation}
	for _, k := range list.Keys {
		peers.Keys = append(peers.Keys, forward.Key{ID: k.ID, Secret: k.Secret})
	}
	for _, p := range list.Pods {
		peers.Pods = append(peers.Pods, forward.Peer{
			Pod: p.Pod, Address: p.Address, Other: p.Other, Sender: p.Sender, Draining: p.Draining,
		})
	}
	d.server.SetPeers(peers, list.Problem)
}
