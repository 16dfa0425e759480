package main

import (
	"github.com/leat-io/leat/libs/service"
	"github.com/leat-io/leat/services/coordinator"
)

func main() {
	service.Main("coordinator", coordinator.DefaultPort, coordinator.DefaultConfig(), coordinator.New)
}
