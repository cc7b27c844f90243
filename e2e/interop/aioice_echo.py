"""Relays datagrams with aioice to an echo peer: aioice_echo.py udp|tcp|tls HOST PORT USER PASSWORD PEER PEER-PORT"""
import asyncio
import os
import sys

from aioice.turn import create_turn_endpoint

transport, host, port, user, password, peer, peer_port = sys.argv[1:]
peer = (peer, int(peer_port))


class Client(asyncio.DatagramProtocol):
    def __init__(self):
        self.received = asyncio.Queue()

    def datagram_received(self, data, addr):
        self.received.put_nowait((data, addr))


async def main():
    relay, client = await create_turn_endpoint(
        Client,
        server_addr=(host, int(port)),
        username=user,
        password=password,
        ssl=transport == "tls",
        transport="udp" if transport == "udp" else "tcp",
    )
    for size in [1, 2, 3, 4, 5, 170, 1199, 1200]:
        sent = os.urandom(size)
        relay.sendto(sent, peer)
        got = await asyncio.wait_for(client.received.get(), 10)
        assert got == (sent, peer), f"sent {size} bytes, got {got}"
    print("relayed by", *relay.get_extra_info("sockname"))
    relay.close()
    await asyncio.wait_for(asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True), 10)


asyncio.run(main())
