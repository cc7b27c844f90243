"""An end of a call with aioice: aioice_end.py controlling|controlled ADDRESS [TURN-HOST TURN-PORT USER PASSWORD]

Prints its ICE parameters and a UDP port of the loopback address as one line of JSON, and reads those of the other end.
Then it passes datagrams between that port and the other end. With a TURN server it has relayed candidates only.
"""
import asyncio
import json
import sys

from aioice import Candidate, Connection, TransportPolicy

role, address, *turn = sys.argv[1:]
relay = {}
if turn:
    host, port, user, password = turn
    relay = dict(
        turn_server=(host, int(port)), turn_username=user, turn_password=password, transport_policy=TransportPolicy.RELAY
    )


class Local(asyncio.DatagramProtocol):
    def __init__(self, connection):
        self.connection = connection

    def datagram_received(self, data, _):
        asyncio.ensure_future(self.connection.send(data))


async def main():
    connection = Connection(ice_controlling=role == "controlling", use_ipv6=False, **relay)
    await connection.gather_candidates()
    loop = asyncio.get_running_loop()
    local, _ = await loop.create_datagram_endpoint(lambda: Local(connection), local_addr=("127.0.0.1", 0))
    candidates = [c.to_sdp() for c in connection.local_candidates if turn or c.host == address]
    own = dict(ufrag=connection.local_username, pwd=connection.local_password, candidates=candidates)
    print(json.dumps(own | dict(port=local.get_extra_info("sockname")[1])), flush=True)
    other = json.loads(await loop.run_in_executor(None, sys.stdin.readline))
    connection.remote_username, connection.remote_password = other["ufrag"], other["pwd"]
    for candidate in other["candidates"]:
        await connection.add_remote_candidate(Candidate.from_sdp(candidate))
    await connection.add_remote_candidate(None)
    await connection.connect()
    print("connected", flush=True)
    while True:
        local.sendto(await connection.recv(), ("127.0.0.1", other["port"]))


try:
    asyncio.run(main())
except ConnectionError as error:  # the other end has ended
    print(error, flush=True)
