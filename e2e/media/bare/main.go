// Command bare is a TURN server of pion/turn with its defaults, for comparison with stunnerd.
package main

import (
	"flag"
	"log"
	"net"

	"github.com/pion/turn/v3"
)

func main() {
	listen := flag.String("listen", "", "UDP `ADDRESS:PORT` of the server; relays have the same address")
	user := flag.String("user", "", "name of the only user")
	password := flag.String("password", "", "password of the only user")
	flag.Parse()
	log.Fatal(serve(*listen, *user, *password))
}

// serve returns only with an error.
func serve(listen, user, password string) error {
	conn, err := net.ListenPacket("udp4", listen)
	if err != nil {
		return err
	}
	address := conn.LocalAddr().(*net.UDPAddr).IP
	_, err = turn.NewServer(turn.ServerConfig{
		Realm: "media.example.org",
		AuthHandler: func(name, realm string, _ net.Addr) ([]byte, bool) {
			return turn.GenerateAuthKey(user, realm, password), name == user
		},
		PacketConnConfigs: []turn.PacketConnConfig{{
			PacketConn: conn,
			RelayAddressGenerator: &turn.RelayAddressGeneratorStatic{
				RelayAddress: address, Address: address.String(),
			},
		}},
	})
	if err != nil {
		return err
	}
	select {}
}
