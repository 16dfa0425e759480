package replica

import typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"

// CountFailure counts a batch that was refused before it reached a replica.
func (m *Manager) CountFailure(reason typev1.ErrorReason) { m.cfg.Metrics.Failure(reason) }
