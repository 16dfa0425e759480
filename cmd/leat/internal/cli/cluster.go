package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
	"github.com/leat-io/leat/cmd/leat/internal/output"
)

func newClusterCommand(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use: "cluster", Short: "Describe the mesh, wait until it is ready, or elect leaders",
		Example: "  leat cluster describe\n  leat cluster wait --timeout 60s",
	}, newClusterDescribe(a), newClusterWait(a), newClusterElectLeaders(a))
}

func newClusterDescribe(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "describe", Short: "Show the processes of the mesh and its health", Args: args(),
		Example: "  leat cluster describe\n  leat cluster describe -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withAdmin(cmd.Context(), func(ctx context.Context, admin gatewayv1.AdminServiceClient) error {
				r, err := call(ctx, admin.DescribeCluster, &gatewayv1.DescribeClusterRequest{})
				if err != nil {
					return err
				}
				return a.printCluster(r)
			})
		},
	}
}

// kindOrder is how kinds are listed: along the way of a record.
var kindOrder = []string{"gateway", "coordinator", "controller", "broker"}

func sortedServices(r *gatewayv1.DescribeClusterResponse) []*gatewayv1.ServiceDescription {
	services := slices.Clone(r.GetServices())
	slices.SortStableFunc(services, func(x, y *gatewayv1.ServiceDescription) int {
		if d := slices.Index(kindOrder, x.GetKind()) - slices.Index(kindOrder, y.GetKind()); d != 0 {
			return d
		}
		return int(x.GetProcess().GetId()) - int(y.GetProcess().GetId())
	})
	return services
}

func serviceName(s *gatewayv1.ServiceDescription) string {
	return fmt.Sprintf("%s-%d", s.GetKind(), s.GetProcess().GetId())
}

func (a *app) printCluster(r *gatewayv1.DescribeClusterResponse) error {
	d := output.Cluster{
		ClusterID: r.GetClusterId(), Controller: r.GetController(), Services: []output.Service{}, Topics: r.GetTopics(), Partitions: r.GetPartitions(),
		UnderReplicatedPartitions: r.GetUnderReplicatedPartitions(), OfflinePartitions: r.GetOfflinePartitions(),
		Generation: r.GetGeneration(), Revision: r.GetRevision(),
	}
	t := output.NewTable("SERVICE", "ADDRESS", "STATE", "RACK", "INCARNATION", "VERSION")
	for _, s := range sortedServices(r) {
		d.Services = append(d.Services, output.Service{
			Name: serviceName(s), Kind: s.GetKind(), ID: s.GetProcess().GetId(), Incarnation: strconv.FormatUint(s.GetProcess().GetIncarnation(), 16),
			Address: s.GetAddress(), Rack: s.GetRack(), Registered: s.GetRegistered(), Fenced: s.GetFenced(), Draining: s.GetDraining(),
			Leads: s.GetLeads(), SoftwareVersion: s.GetSoftwareVersion(),
		})
		t.Row(serviceName(s), output.OrDash(s.GetAddress()), stateOf(s), output.OrDash(s.GetRack()),
			strconv.FormatUint(s.GetProcess().GetIncarnation(), 16), output.OrDash(s.GetSoftwareVersion()))
	}
	if a.json() {
		return output.JSON(a.Out, d)
	}
	leader := "none leads"
	if d.Controller != 0 {
		leader = fmt.Sprintf("controller-%d leads", d.Controller)
	}
	if _, err := fmt.Fprintf(a.Out, "cluster %s: %s; %s topics, %s partitions, %s without a leader, %s under-replicated\n\n", d.ClusterID, leader,
		output.Count(int64(d.Topics)), output.Count(int64(d.Partitions)), output.Count(int64(d.OfflinePartitions)), output.Count(int64(d.UnderReplicatedPartitions))); err != nil {
		return err
	}
	return t.Write(a.Out)
}

func stateOf(s *gatewayv1.ServiceDescription) string {
	var words []string
	if !s.GetRegistered() {
		words = append(words, "not registered")
	}
	if s.GetFenced() {
		words = append(words, "fenced")
	}
	if s.GetDraining() {
		words = append(words, "draining")
	}
	if s.GetLeads() {
		words = append(words, "leads")
	}
	if len(words) == 0 {
		return "up"
	}
	return strings.Join(words, ", ")
}

func newClusterWait(a *app) *cobra.Command {
	var timeout time.Duration
	var brokers int
	cmd := &cobra.Command{
		Use: "wait", Short: "Wait until the mesh is ready", Args: args(),
		Long: `Wait until a controller leads, a service of each kind is registered, every
broker that is known is unfenced and every partition has a leader. A broker that
has never been up is not known: --brokers says how many there are to be. It tries
again while nothing answers, and ends with exit code 4 when the time is over.

` + exitCodes,
		Example: "  leat cluster wait --timeout 60s\n  leat cluster wait --brokers 3",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return exit.Usage(seeHelp(cmd), "--timeout is %v; it must be above 0", timeout)
			}
			if brokers < 1 {
				return exit.Usage(seeHelp(cmd), "--brokers is %d; it must be at least 1", brokers)
			}
			return a.clusterWait(cmd.Context(), timeout, brokers)
		},
	}
	cmd.Flags().IntVar(&brokers, "brokers", 1, "how many brokers must be registered and unfenced, at least")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait")
	return cmd
}

func (a *app) clusterWait(ctx context.Context, timeout time.Duration, brokers int) error {
	conn, err := a.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	a.requestTimeout = timeout
	ctx, cancel := a.callContext(ctx)
	defer cancel()
	admin := gatewayv1.NewAdminServiceClient(conn)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	missing := "nothing has answered"
	answered := false
	for {
		attempt, stop := context.WithTimeout(ctx, 2*time.Second)
		r, err := admin.DescribeCluster(attempt, &gatewayv1.DescribeClusterRequest{})
		stop()
		switch {
		case err == nil:
			answered = true
			if missing = notReady(r, brokers); missing == "" {
				return a.done("mesh", "ready", "the mesh is ready")
			}
		case ctx.Err() == nil:
			typed := rpc.FromError(err)
			if !rpc.Retryable(typed) {
				return typed
			}
			// That an attempt took too long says less than what the one before found.
			if !answered || !rpc.IsReason(typed, typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED) {
				missing, _, _ = describe(typed)
			}
		}
		select {
		case <-tick.C:
			continue
		case <-ctx.Done():
		}
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return exit.With(exit.Interrupted, errors.New("interrupted"))
		}
		return &exit.Error{
			Code: exit.Unknown, Err: fmt.Errorf("the mesh is not ready after %v: %s", timeout, missing),
			Next: "See `leat cluster describe` and the logs of what is missing.",
		}
	}
}

// notReady says what is missing until the mesh is ready with so many brokers, "" if
// nothing is.
func notReady(r *gatewayv1.DescribeClusterResponse, brokers int) string {
	var missing []string
	kinds := map[string]int{}
	for _, s := range sortedServices(r) {
		switch {
		case !s.GetRegistered():
			missing = append(missing, serviceName(s)+" is not registered")
		case s.GetFenced():
			missing = append(missing, serviceName(s)+" is fenced")
		default:
			kinds[s.GetKind()]++
		}
	}
	for _, kind := range kindOrder {
		if kinds[kind] == 0 && !strings.Contains(strings.Join(missing, " "), kind) {
			missing = append(missing, "no "+kind+" is registered")
		}
	}
	if n := kinds["broker"]; n > 0 && n < brokers {
		missing = append(missing, fmt.Sprintf("%d of %d brokers are up", n, brokers))
	}
	if r.GetController() == 0 {
		missing = append(missing, "no controller leads")
	}
	if n := r.GetOfflinePartitions(); n > 0 {
		missing = append(missing, fmt.Sprintf("%d partitions have no leader", n))
	}
	return strings.Join(missing, ", ")
}
