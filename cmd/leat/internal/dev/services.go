package dev

import (
	"github.com/leat-io/leat/services/broker"
	"github.com/leat-io/leat/services/controller"
	"github.com/leat-io/leat/services/coordinator"
	"github.com/leat-io/leat/services/gateway"
)

// serviceKinds are the services that dev can run.
func serviceKinds() map[string]kind {
	return map[string]kind{
		kindBroker:      kindOf(broker.DefaultConfig, broker.New),
		kindController:  kindOf(controller.DefaultConfig, controller.New),
		kindCoordinator: kindOf(coordinator.DefaultConfig, coordinator.New),
		kindGateway:     kindOf(gateway.DefaultConfig, gateway.New),
	}
}
