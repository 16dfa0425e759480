package cli

import (
	"encoding/json"
	"strings"
	"testing"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
)

func TestShapes(t *testing.T) {
	f := startFake(t)
	f.topic("t", 2)
	f.fill("t", 0, "a")
	f.cluster = readyCluster()
	for args, want := range map[string]string{
		"topic describe t":   `{"name":"t","id":"MDEyMzQ1Njc4OWFiY2RlZg","internal":false,"configs":[{"name":"retention.ms","value":"1000","source":"topic","default":"604800000","description":"How long."}],"partitions":[{"partition":0,"leader":1,"leader_epoch":4,"replicas":[1],"isr":[1],"elr":[],"log_start_offset":0,"high_watermark":1,"replica_ends":[]},{"partition":1,"leader":-1,"leader_epoch":4,"replicas":[1],"isr":[1],"elr":[],"log_start_offset":0,"high_watermark":0,"replica_ends":[]}]}`,
		"group describe g":   `{"group":"g","state":"stable","epoch":3,"assignor":"uniform","members":[{"member_id":"m1","instance_id":null,"client_id":"c","client_host":"h","member_epoch":3,"partitions":1,"topics":[],"topic_pattern":null,"session_timeout_ms":null,"rebalance_timeout_ms":null,"max_processing_ms":null,"attached":false,"last_sign_ms":null,"stuck":false,"replaced_by":null}],"partitions":[{"topic":"t","partition":0,"committed":5,"end":7,"lag":2,"member":"m1","metadata":"","topic_id":"MDEyMzQ1Njc4OWFiY2RlZg","committed_at":null,"log_start":-1,"lag_ms":null,"lag_at_least":false,"records_per_second":null,"appended_per_second":null,"catch_up_ms":null,"held_back_by":"unknown","held_back_detail":"","delivered":-1,"processed":-1,"oldest_unprocessed_ms":null,"stuck":false,"revoking":false,"revoking_remaining_ms":null,"target_member":null,"unowned_ms":null},{"topic":"t","partition":1,"committed":-1,"end":-1,"lag":-1,"member":null,"metadata":"","topic_id":"MDEyMzQ1Njc4OWFiY2RlZg","committed_at":null,"log_start":-1,"lag_ms":null,"lag_at_least":false,"records_per_second":null,"appended_per_second":null,"catch_up_ms":null,"held_back_by":"unknown","held_back_detail":"","delivered":-1,"processed":-1,"oldest_unprocessed_ms":null,"stuck":false,"revoking":false,"revoking_remaining_ms":null,"target_member":null,"unowned_ms":null}],"total_lag":2,"catch_up_ms":null,"last_rebalance":null}`,
		"topic offsets t":    `{"topic":"t","offsets":[{"partition":0,"offset":1,"timestamp":null,"leader_epoch":-1},{"partition":1,"offset":0,"timestamp":null,"leader_epoch":-1}]}`,
		"cluster wait":       `{"name":"mesh","done":"ready"}`,
		"explain NOT_LEADER": "",
		"cluster describe":   "",
		"version":            "",
		"explain":            "",
	} {
		out, _ := leat(t, 0, f.addr, "", append(strings.Fields(args), "-o", "json")...)
		if want != "" && out != want+"\n" {
			t.Errorf("%s:\n%s", args, out)
		}
		if !json.Valid([]byte(out)) || strings.Count(out, "\n") != 1 {
			t.Errorf("%s is not one line of JSON:\n%s", args, out)
		}
		if text, _ := leat(t, 0, f.addr, "", strings.Fields(args)...); text == "" || strings.HasPrefix(text, "{") {
			t.Errorf("%s for people:\n%s", args, text)
		}
	}
}

func readyCluster() *gatewayv1.DescribeClusterResponse {
	r := &gatewayv1.DescribeClusterResponse{ClusterId: "c", Controller: 1}
	for i, kind := range []string{"broker", "controller", "coordinator", "gateway"} {
		r.Services = append(r.Services, &gatewayv1.ServiceDescription{
			Kind: kind, Process: &typev1.Process{Id: 1, Incarnation: uint64(i)}, Address: "127.0.0.1:1", Registered: true, Leads: kind == "controller",
		})
	}
	return r
}

func TestClusterWait(t *testing.T) {
	for want, spoil := range map[string]func(*gatewayv1.DescribeClusterResponse){
		"no controller leads":            func(r *gatewayv1.DescribeClusterResponse) { r.Controller = 0 },
		"broker-1 is fenced":             func(r *gatewayv1.DescribeClusterResponse) { r.Services[0].Fenced = true },
		"broker-1 is not registered":     func(r *gatewayv1.DescribeClusterResponse) { r.Services[0].Registered = false },
		"no gateway is registered":       func(r *gatewayv1.DescribeClusterResponse) { r.Services = r.Services[:3] },
		"2 partitions have no leader":    func(r *gatewayv1.DescribeClusterResponse) { r.OfflinePartitions = 2 },
		"coordinator-1 is not registere": func(r *gatewayv1.DescribeClusterResponse) { r.Services[2].Registered = false },
	} {
		f := startFake(t)
		f.cluster = readyCluster()
		spoil(f.cluster)
		clusterWaitSays(t, f.addr, want)
	}
	clusterWaitSays(t, "127.0.0.1:1", "UNREACHABLE")
	f := startFake(t)
	f.cluster = readyCluster()
	clusterWaitSays(t, f.addr, "1 of 3 brokers are up", "--brokers", "3")
	for id := range int32(2) {
		f.cluster.Services = append(f.cluster.Services, &gatewayv1.ServiceDescription{Kind: "broker", Process: &typev1.Process{Id: 2 + id}, Registered: true})
	}
	leat(t, 0, f.addr, "", "cluster", "wait", "--brokers", "3")
}

// clusterWaitSays demands that a wait in vain tells what is missing, if it has the time
// to hear that: on a busy machine the first answer may take longer than a short wait.
func clusterWaitSays(t *testing.T, addr, want string, flags ...string) {
	t.Helper()
	var stderr string
	for _, timeout := range []string{"300ms", "3s", "20s"} {
		if _, stderr = leat(t, 4, addr, "", append([]string{"cluster", "wait", "--timeout", timeout}, flags...)...); strings.Contains(stderr, want) {
			return
		}
	}
	t.Errorf("stderr does not say %q: %s", want, stderr)
}

func TestGroupCommit(t *testing.T) {
	f := startFake(t)
	f.topic("t", 2)
	f.fill("t", 0, "a", "b")
	leat(t, 0, f.addr, "", "group", "commit", "g", "t:0=1")
	if got := f.committedAt("g", "t", 0); got != 1 {
		t.Errorf("committed %d", got)
	}
	leat(t, 0, f.addr, "", "group", "commit", "g", "--topic", "t", "--to", "latest")
	if a, b := f.committedAt("g", "t", 0), f.committedAt("g", "t", 1); a != 2 || b != 0 {
		t.Errorf("committed %d and %d", a, b)
	}
}

// An offset from which the group could not read is refused before it is committed.
func TestGroupCommitRefusesOffsetsOutOfRange(t *testing.T) {
	f := startFake(t)
	f.topic("t", 2)
	f.fill("t", 0, "a", "b")
	_, stderr := leat(t, 1, f.addr, "", "group", "commit", "g", "t:1=0", "t:0=3")
	if !strings.Contains(stderr, "OFFSET_OUT_OF_RANGE") || !strings.Contains(stderr, "0 to 2") || f.committedAt("g", "t", 1) != -1 {
		t.Errorf("committed %d: %s", f.committedAt("g", "t", 1), stderr)
	}
	leat(t, 0, f.addr, "", "group", "commit", "g", "t:1=0", "t:0=2")
	if f.committedAt("g", "t", 0) != 2 {
		t.Errorf("committed %d", f.committedAt("g", "t", 0))
	}
}
