package main

import (
	"github.com/leat-io/leat/libs/service"
	"github.com/leat-io/leat/services/gateway"
)

func main() { service.Main("gateway", gateway.DefaultPort, gateway.DefaultConfig(), gateway.New) }
