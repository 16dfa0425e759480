package replica

import (
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
)

func TestMetricsAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	m, err := NewMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	m.Failure(typev1.ErrorReason_ERROR_REASON_NOT_LEADER)
	m.replicas.WithLabelValues("leading").Set(1)
	for _, v := range []*prometheus.GaugeVec{m.diskState, m.diskFree, m.diskTotal} {
		v.WithLabelValues("/d1").Set(1)
	}
	m.upkeepFailures.WithLabelValues("cleaning").Inc()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) != 27 {
		t.Errorf("%d metrics, want 27", len(families))
	}
	for _, f := range families {
		if !strings.Contains(string(doc), "| `"+f.GetName()+"` |") {
			t.Errorf("docs/metrics.md does not name %s", f.GetName())
		}
		if strings.HasPrefix(f.GetName(), "leat_broker_produce_failures") && f.GetMetric()[0].GetLabel()[0].GetValue() != "NOT_LEADER" {
			t.Errorf("label %v", f.GetMetric()[0].GetLabel())
		}
	}
}
