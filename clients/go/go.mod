module github.com/stunner-gateway/stunner/clients/go

go 1.26.0
