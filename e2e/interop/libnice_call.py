"""Connects two agents of libnice, the ICE library of GStreamer and others, through relays only: libnice_call.py udp|tcp HOST PORT USER PASSWORD"""
import ctypes
import os
import sys

import gi

gi.require_version("Nice", "0.1")
from gi.repository import GLib, Nice

transport, host, port, user, password = sys.argv[1:]
kind = {"udp": Nice.RelayType.UDP, "tcp": Nice.RelayType.TCP}[transport]
messages = [os.urandom(size) for size in [1, 2, 3, 4, 5, 170, 1199, 1200]]
loop = GLib.MainLoop()

# Data bypass the GObject bindings, which have no type for a buffer. The hash of an object is its address.
nice = ctypes.CDLL("libnice.so.10")
received_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint, ctypes.POINTER(ctypes.c_char), ctypes.c_void_p)


class End:
    def __init__(self, controlling):
        self.other, self.gathered, self.over, self.waiting = None, False, False, list(messages)
        self.agent = Nice.Agent.new(loop.get_context(), Nice.Compatibility.RFC5245)
        self.agent.props.controlling_mode = controlling
        self.agent.props.force_relay = True
        address = Nice.Address.new()
        address.set_from_string("127.0.0.1")  # libnice leaves loopback out by itself
        self.agent.add_local_address(address)
        self.stream = self.agent.add_stream(1)
        self.agent.set_relay_info(self.stream, 1, host, int(port), user, password, kind)
        self.callback = received_type(self.received)
        assert nice.nice_agent_attach_recv(ctypes.c_void_p(hash(self.agent)), self.stream, 1, None, self.callback, None)
        self.agent.connect("candidate-gathering-done", self.meet)
        self.agent.connect("component-state-changed", self.changed)

    def meet(self, *_):
        self.gathered = True
        if self.other.gathered:
            self.learn(self.other)
            self.other.learn(self)

    def learn(self, other):
        _, ufrag, pwd = other.agent.get_local_credentials(other.stream)
        self.agent.set_remote_credentials(self.stream, ufrag, pwd)
        candidates = other.agent.get_local_candidates(other.stream, 1)
        assert candidates and all(c.type == Nice.CandidateType.RELAYED for c in candidates)
        self.agent.set_remote_candidates(self.stream, 1, candidates)

    def changed(self, agent, stream, component, state):
        assert state != Nice.ComponentState.FAILED, "no pair of candidates works"
        if state == Nice.ComponentState.READY:
            for message in messages:
                assert nice.nice_agent_send(ctypes.c_void_p(hash(agent)), stream, component, len(message), message) == len(message)

    def received(self, agent, stream, component, size, data, _):
        self.waiting.remove(data[:size])
        if not self.waiting and not self.other.waiting:
            self.agent.close_async(self.closed)  # gives the relays back
            self.other.agent.close_async(self.other.closed)

    def closed(self, *_):
        self.over = True
        if self.other.over:
            loop.quit()


a, b = End(True), End(False)
a.other, b.other = b, a
for end in (a, b):
    assert end.agent.gather_candidates(end.stream)
GLib.timeout_add_seconds(30, loop.quit)
loop.run()
assert a.over and b.over, f"messages are missing: of {[len(m) for m in a.waiting]} and {[len(m) for m in b.waiting]} bytes"
print("both received", len(messages), "messages")
