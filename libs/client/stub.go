package client

import "errors"

var errStub = errors.New("client: being written")
