package client

import (
	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	"github.com/leat-io/leat/libs/rpc"
)

type fakeCoordinator struct {
	coordinatorv1.UnimplementedGroupServiceServer
	m      *fakeMesh
	id     int32
	addr   string
	server *rpc.Server
	served chan struct{}
}

type fakeGroup struct{}
