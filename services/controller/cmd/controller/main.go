package main

import (
	"github.com/leat-io/leat/libs/service"
	"github.com/leat-io/leat/services/controller"
)

func main() {
	service.Main("controller", 5329, controller.DefaultConfig(), controller.New)
}
