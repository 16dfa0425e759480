package main

import (
	"github.com/leat-io/leat/libs/service"
	"github.com/leat-io/leat/services/broker"
)

func main() { service.Main("broker", broker.DefaultPort, broker.DefaultConfig(), broker.New) }
