package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
	"github.com/leat-io/leat/cmd/leat/internal/output"
)

func newTopicCommand(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use: "topic", Short: "Create, list, describe, alter, compare and delete topics",
		Example: "  leat topic create hdfs --partitions 3\n  leat topic describe hdfs",
	}, newTopicCreate(a), newTopicList(a), newTopicDescribe(a), newTopicAlter(a), newTopicDelete(a), newTopicOffsets(a),
		newTopicDeleteRecords(a), newTopicDigest(a))
}

func newTopicCreate(a *app) *cobra.Command {
	var partitions, replication int32
	var configs []string
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a topic and wait until it can be used",
		Long: `Create a topic. Names are 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and
'-'. Configs have Kafka's names; ` + "`leat topic describe`" + ` shows those in force.

` + exitCodes,
		Example: `  leat topic create hdfs --partitions 3
  leat topic create audit --config retention.ms=86400000 --config durability=os`,
		Args: args("NAME"),
		RunE: func(cmd *cobra.Command, given []string) error {
			set, err := keyValues(cmd, "config", configs)
			if err != nil {
				return err
			}
			id, err := requestID()
			if err != nil {
				return err
			}
			request := &gatewayv1.CreateTopicRequest{RequestId: id, Topic: given[0], Configs: set}
			if cmd.Flags().Changed("partitions") {
				request.Partitions = &partitions
			}
			if cmd.Flags().Changed("replication-factor") {
				request.ReplicationFactor = &replication
			}
			return a.withAdmin(cmd.Context(), func(ctx context.Context, admin gatewayv1.AdminServiceClient) error {
				r, err := call(ctx, admin.CreateTopic, request)
				if err != nil {
					return err
				}
				if a.json() {
					return output.JSON(a.Out, output.Topic{
						Name: given[0], ID: topicID(r.GetTopicId()), Partitions: r.GetPartitions(), ReplicationFactor: r.GetReplicationFactor(),
					})
				}
				_, err = fmt.Fprintf(a.Out, "created topic %s: partitions %d, replication factor %d\n", given[0], r.GetPartitions(), r.GetReplicationFactor())
				return err
			})
		},
	}
	cmd.Flags().Int32Var(&partitions, "partitions", 0, "number of partitions (default: num.partitions of the mesh)")
	cmd.Flags().Int32Var(&replication, "replication-factor", 0, "replicas of each partition (default: that of the mesh)")
	cmd.Flags().StringArrayVar(&configs, "config", nil, "a topic config, name=value; may be repeated")
	return cmd
}

func newTopicList(a *app) *cobra.Command {
	var internal bool
	cmd := &cobra.Command{
		Use: "list", Short: "List topics", Args: args(),
		Example: "  leat topic list\n  leat topic list --internal -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withAdmin(cmd.Context(), func(ctx context.Context, admin gatewayv1.AdminServiceClient) error {
				topics, err := pages(func(token string) ([]*gatewayv1.TopicSummary, string, error) {
					r, err := call(ctx, admin.ListTopics, &gatewayv1.ListTopicsRequest{PageToken: token, ExcludeInternal: !internal})
					return r.GetTopics(), r.GetNextPageToken(), err
				})
				if err != nil {
					return err
				}
				list := output.Topics{Topics: []output.Topic{}}
				t := output.NewTable("NAME", ">PARTITIONS", ">REPLICATION", "ID")
				for _, s := range topics {
					list.Topics = append(list.Topics, output.Topic{
						Name: s.GetName(), ID: topicID(s.GetTopicId()), Partitions: s.GetPartitions(),
						ReplicationFactor: s.GetReplicationFactor(), Internal: s.GetInternal(),
					})
					t.Row(s.GetName(), s.GetPartitions(), s.GetReplicationFactor(), topicID(s.GetTopicId()))
				}
				if a.json() {
					return output.JSON(a.Out, list)
				}
				return t.Write(a.Out)
			})
		},
	}
	cmd.Flags().BoolVar(&internal, "internal", false, "with the topics of Leat itself")
	return cmd
}

func newTopicDescribe(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "describe NAME", Short: "Show configs, leaders, replicas and marks of a topic", Args: args("NAME"),
		Long: `Show every config in force, with its source (topic, cluster or default) and
default, and every partition with its leader (none, or -1 in JSON, without
one), replicas, in-sync and eligible leader replicas (ISR and ELR), start offset,
high watermark, and the end of each replica that answers.

` + exitCodes,
		Example: "  leat topic describe hdfs\n  leat topic describe hdfs -o json",
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.withAdmin(cmd.Context(), func(ctx context.Context, admin gatewayv1.AdminServiceClient) error {
				r, err := call(ctx, admin.DescribeTopic, &gatewayv1.DescribeTopicRequest{Topic: given[0]})
				if err != nil {
					return err
				}
				return a.printTopic(r)
			})
		},
	}
}

// sourceName is how a config's source is called.
func sourceName(s gatewayv1.ConfigSource) string {
	switch s {
	case gatewayv1.ConfigSource_CONFIG_SOURCE_TOPIC:
		return "topic"
	case gatewayv1.ConfigSource_CONFIG_SOURCE_CLUSTER_DEFAULT:
		return "cluster"
	default:
		return "default"
	}
}

// ids makes an empty list of nil, so that JSON has [] and not null.
func ids(list []int32) []int32 {
	if list == nil {
		return []int32{}
	}
	return list
}

func (a *app) printTopic(r *gatewayv1.DescribeTopicResponse) error {
	d := output.TopicDescription{
		Name: r.GetSummary().GetName(), ID: topicID(r.GetSummary().GetTopicId()), Internal: r.GetSummary().GetInternal(),
		Configs: []output.Config{}, Partitions: []output.Partition{},
	}
	configs := output.NewTable("CONFIG", "VALUE", "SOURCE", "DEFAULT")
	for _, c := range r.GetConfigs() {
		d.Configs = append(d.Configs, output.Config{
			Name: c.GetName(), Value: c.GetValue(), Source: sourceName(c.GetSource()), Default: c.GetDefaultValue(), Description: c.GetDescription(),
		})
		configs.Row(c.GetName(), output.OrDash(c.GetValue()), sourceName(c.GetSource()), output.OrDash(c.GetDefaultValue()))
	}
	partitions := output.NewTable(">PARTITION", ">LEADER", ">EPOCH", "REPLICAS", "ISR", "ELR", ">START", ">HIGH WATERMARK", "ENDS")
	for _, p := range r.GetPartitions() {
		part := output.Partition{
			Partition: p.GetPartition(), Leader: p.GetLeader(), LeaderEpoch: p.GetLeaderEpoch(), Replicas: ids(p.GetReplicas()),
			ISR: ids(p.GetIsr()), ELR: ids(p.GetElr()), LogStartOffset: p.GetLogStartOffset(), HighWatermark: p.GetHighWatermark(),
			ReplicaEnds: []output.ReplicaEnd{},
		}
		var ends []string
		for _, e := range p.GetReplicaEnds() {
			ends = append(ends, fmt.Sprintf("%d:%d", e.GetBroker(), e.GetEnd()))
			part.ReplicaEnds = append(part.ReplicaEnds, output.ReplicaEnd{Broker: e.GetBroker(), End: e.GetEnd(), DurableEnd: e.GetDurableEnd()})
		}
		d.Partitions = append(d.Partitions, part)
		partitions.Row(p.GetPartition(), output.Broker(p.GetLeader()), p.GetLeaderEpoch(), output.IDs(p.GetReplicas()), output.IDs(p.GetIsr()),
			output.IDs(p.GetElr()), output.Offset(p.GetLogStartOffset()), output.Offset(p.GetHighWatermark()), output.OrDash(strings.Join(ends, " ")))
	}
	if a.json() {
		return output.JSON(a.Out, d)
	}
	if _, err := fmt.Fprintf(a.Out, "topic %s, id %s, %d partitions\n\n", d.Name, d.ID, len(d.Partitions)); err != nil {
		return err
	}
	if err := partitions.Write(a.Out); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(a.Out); err != nil {
		return err
	}
	return configs.Write(a.Out)
}

func newTopicAlter(a *app) *cobra.Command {
	var partitions int32
	var configs, unset []string
	cmd := &cobra.Command{
		Use: "alter NAME", Short: "Change configs of a topic, or add partitions", Args: args("NAME"),
		Long: `Change a topic: all of what is asked for takes place, or nothing. Partitions
can only be added; records with a key may then go to other partitions than
before.

` + exitCodes,
		Example: `  leat topic alter hdfs --config retention.ms=3600000
  leat topic alter hdfs --delete-config retention.ms --partitions 6`,
		RunE: func(cmd *cobra.Command, given []string) error {
			set, err := keyValues(cmd, "config", configs)
			if err != nil {
				return err
			}
			id, err := requestID()
			if err != nil {
				return err
			}
			request := &gatewayv1.AlterTopicRequest{RequestId: id, Topic: given[0], SetConfigs: set, DeleteConfigs: unset}
			if cmd.Flags().Changed("partitions") {
				request.Partitions = &partitions
			}
			if len(set) == 0 && len(unset) == 0 && request.Partitions == nil {
				return exit.Usage("Give --config, --delete-config or --partitions.", "nothing to change is named")
			}
			return a.withAdmin(cmd.Context(), func(ctx context.Context, admin gatewayv1.AdminServiceClient) error {
				if _, err := call(ctx, admin.AlterTopic, request); err != nil {
					return err
				}
				return a.done(given[0], "altered", "altered topic "+given[0])
			})
		},
	}
	cmd.Flags().Int32Var(&partitions, "partitions", 0, "new number of partitions, above the present one")
	cmd.Flags().StringArrayVar(&configs, "config", nil, "a config to set, name=value; may be repeated")
	cmd.Flags().StringArrayVar(&unset, "delete-config", nil, "a config to put back to its default; may be repeated")
	return cmd
}

func newTopicDelete(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME", Short: "Delete a topic and its records", Args: args("NAME"),
		Example: "  leat topic delete hdfs",
		RunE: func(cmd *cobra.Command, given []string) error {
			id, err := requestID()
			if err != nil {
				return err
			}
			return a.withAdmin(cmd.Context(), func(ctx context.Context, admin gatewayv1.AdminServiceClient) error {
				if _, err := call(ctx, admin.DeleteTopic, &gatewayv1.DeleteTopicRequest{RequestId: id, Topic: given[0]}); err != nil {
					return err
				}
				return a.done(given[0], "deleted", "deleted topic "+given[0])
			})
		},
	}
}

func newTopicOffsets(a *app) *cobra.Command {
	var at string
	var partitions []int32
	cmd := &cobra.Command{
		Use: "offsets NAME", Short: "Show offsets of a topic by place or time", Args: args("NAME"),
		Long: `Show for each partition the offset at a place (earliest, latest, or max: the
record with the greatest timestamp) or of the first record at a time or later;
-1 where there is none. A time is ` + timeForms + `.

` + exitCodes,
		Example: `  leat topic offsets hdfs
  leat topic offsets hdfs --time earliest
  leat topic offsets hdfs --time "1h ago" -o json`,
		RunE: func(cmd *cobra.Command, given []string) error {
			spec, err := parseOffsetSpec(at, time.Now())
			if err != nil {
				return exit.Usage(seeHelp(cmd), "--time: %w", err)
			}
			return a.withAdmin(cmd.Context(), func(ctx context.Context, admin gatewayv1.AdminServiceClient) error {
				r, err := call(ctx, admin.ListOffsets, &gatewayv1.ListOffsetsRequest{Topic: given[0], Partitions: partitions, Spec: spec})
				if err != nil {
					return err
				}
				return a.printOffsets(given[0], r.GetOffsets())
			})
		},
	}
	cmd.Flags().StringVar(&at, "time", "latest", "earliest, latest, max, or a time")
	cmd.Flags().Int32SliceVar(&partitions, "partition", nil, "partitions to show (default all)")
	return cmd
}

func (a *app) printOffsets(topic string, offsets []*gatewayv1.PartitionOffset) error {
	list := output.TopicOffsets{Topic: topic, Offsets: []output.PartitionOffset{}}
	t := output.NewTable(">PARTITION", ">OFFSET", "TIMESTAMP", ">LEADER EPOCH")
	failed := 0
	for _, o := range offsets {
		entry := output.PartitionOffset{Partition: o.GetPartition(), Offset: o.GetOffset(), LeaderEpoch: o.GetLeaderEpoch()}
		when := "-"
		if o.GetTimestamp() != nil {
			ms := o.GetTimestamp().AsTime().UnixMilli()
			entry.Timestamp, when = &ms, output.Timestamp(ms)
		}
		if e := o.GetError(); e != nil {
			failed++
			entry.Offset, entry.Error = -1, errorOf(e)
			when = fmt.Sprintf("%s: %s", entry.Error.Reason, entry.Error.Message)
		}
		list.Offsets = append(list.Offsets, entry)
		t.Row(entry.Partition, output.Offset(entry.Offset), when, entry.LeaderEpoch)
	}
	return a.printList(list, t, failed, len(offsets), "partitions did not answer")
}
