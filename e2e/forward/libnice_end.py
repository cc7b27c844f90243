"""An end of a call with libnice: libnice_end.py controlling|controlled ADDRESS [TURN-HOST TURN-PORT USER PASSWORD]

Prints its ICE parameters and a UDP port of the loopback address as one line of JSON, and reads those of the other end.
Then it passes datagrams between that port and the other end. With a TURN server it has relayed candidates only.
"""
import ctypes
import json
import socket
import sys

import gi

gi.require_version("Nice", "0.1")
from gi.repository import GLib, Nice

role, address, *turn = sys.argv[1:]
loop = GLib.MainLoop()
local = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
local.bind(("127.0.0.1", 0))
agent = Nice.Agent.new(loop.get_context(), Nice.Compatibility.RFC5245)
agent.props.controlling_mode = role == "controlling"
agent.props.upnp = False
agent.props.ice_tcp = False
here = Nice.Address.new()
here.set_from_string(address)
agent.add_local_address(here)
stream = agent.add_stream(1)
if turn:
    host, port, user, password = turn
    agent.props.force_relay = True
    agent.set_relay_info(stream, 1, host, int(port), user, password, Nice.RelayType.UDP)
to = None

# Data bypass the GObject bindings, which have no type for a buffer. The hash of an object is its address.
nice = ctypes.CDLL("libnice.so.10")
pointer = ctypes.c_void_p(hash(agent))
received_type = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint, ctypes.POINTER(ctypes.c_char), ctypes.c_void_p
)


@received_type
def received(_agent, _stream, _component, size, data, _):
    if to:
        local.sendto(data[:size], to)


def outgoing(*_):
    data = local.recv(2048)
    nice.nice_agent_send(pointer, stream, 1, len(data), data)
    return True


def gathered(*_):
    candidates = [agent.generate_local_candidate_sdp(c) for c in agent.get_local_candidates(stream, 1)]
    _, ufrag, pwd = agent.get_local_credentials(stream)
    own = dict(ufrag=ufrag, pwd=pwd, candidates=[c.removeprefix("a=candidate:") for c in candidates])
    print(json.dumps(own | dict(port=local.getsockname()[1])), flush=True)
    GLib.io_add_watch(sys.stdin.fileno(), GLib.PRIORITY_DEFAULT, GLib.IO_IN | GLib.IO_HUP, meet)


def meet(*_):
    global to
    other = json.loads(sys.stdin.readline())
    to = ("127.0.0.1", other["port"])
    agent.set_remote_credentials(stream, other["ufrag"], other["pwd"])
    remote = [agent.parse_remote_candidate_sdp(stream, "a=candidate:" + c) for c in other["candidates"]]
    assert agent.set_remote_candidates(stream, 1, remote) == len(remote)
    return False


def changed(_agent, _stream, _component, state):
    if state == Nice.ComponentState.READY:
        print("connected", flush=True)


assert nice.nice_agent_attach_recv(pointer, stream, 1, None, received, None)
agent.connect("candidate-gathering-done", gathered)
agent.connect("component-state-changed", changed)
GLib.io_add_watch(local.fileno(), GLib.PRIORITY_DEFAULT, GLib.IO_IN, outgoing)
assert agent.gather_candidates(stream)
loop.run()
