package client

// joins are the join streams of a client, one for each coordinator.
type joins struct{}

func newJoins(*Client) *joins { return &joins{} }
func (j *joins) close()       {}
