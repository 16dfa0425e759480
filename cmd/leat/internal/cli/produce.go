package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
	"github.com/leat-io/leat/cmd/leat/internal/output"
	"github.com/leat-io/leat/cmd/leat/internal/produce"
)

// produceFlags are the flags of produce as given.
type produceFlags struct {
	input, separator, keyRegex string
	headers                    []string
	acks, compression          string
	partition                  int32
	partitioner                string
	acksOut                    string
	rate                       float64
	deliveryTimeout            time.Duration
	linger                     time.Duration
	clientID                   string
}

func newProduceCommand(a *app) *cobra.Command {
	var f produceFlags
	cmd := &cobra.Command{
		Use: "produce TOPIC", Short: "Send the records of the standard input to a topic", Args: args("TOPIC"),
		Long: `Send records to a topic, as they come.

With --input lines each line is the value of a record: it ends at LF, which is
not part of it, while CR is; a last line without LF counts. The key is what
precedes the first --key-separator, or what --key-regex matches first (of its
first group, if it has one); without a match it is null.

With --input json each line is an object with key, value, headers (a list of
{"key","value"}), timestamp (ms since 1970, or RFC 3339) and partition; what is
null or left out is null, or the default. key_base64 and value_base64 take
bytes that are not UTF-8. The output of consume -o json is understood; its
topic, offset and leader_epoch do not count.

--acks-out writes one line for each record of the input, as soon as its fate is
known: {"number":1,"partition":0,"offset":12}, {"number":1,"error":"REASON"}, or
{"number":1,"unknown":"REASON"} if it may or may not be stored. An acknowledged
record that may be in the log twice, because a connection broke before an
earlier attempt was answered, has "maybe_duplicated":true. Numbers count the
records of the input from 1.

Delivery is at least once. A summary goes to stderr.

` + exitCodes,
		Example: `  leat produce hdfs --key-regex 'blk_-?[0-9]+' < HDFS.log
  printf 'k1:v1\nk2:v2\n' | leat produce pairs --key-separator : --acks-out acks.json
  leat consume a -o json --from-beginning --follow=false | leat produce b --input json
  leat produce load --rate 500 --acks 1 --compression zstd < lines.txt`,
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.produce(cmd, given[0], f)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.input, "input", "lines", "form of the input: lines or json")
	fs.StringVar(&f.separator, "key-separator", "", `what stands between key and value; \t is a tab`)
	fs.StringVar(&f.keyRegex, "key-regex", "", "regular expression (RE2) that finds the key in a line")
	fs.StringArrayVar(&f.headers, "header", nil, "a header for every record, key=value; may be repeated")
	fs.StringVar(&f.acks, "acks", "all", "whose storing to wait for: 0 nobody's, 1 the leader's, all in-sync replicas'")
	fs.StringVar(&f.compression, "compression", "none", "codec of the batches: none, gzip, snappy, lz4 or zstd")
	fs.Int32Var(&f.partition, "partition", 0, "partition for records that name none (default: the partitioner's choice)")
	fs.StringVar(&f.partitioner, "partitioner", "murmur2", "murmur2 (of the key, as Kafka's clients do; sticky without a key), sticky, round-robin or random")
	fs.StringVar(&f.acksOut, "acks-out", "", "file that gets one JSON line for each record; - is stdout")
	fs.Float64Var(&f.rate, "rate", 0, "records per second at the most (default: no bound)")
	fs.DurationVar(&f.deliveryTimeout, "delivery-timeout", 2*time.Minute, "time after which the outcome of a record is reported, known or not")
	fs.DurationVar(&f.linger, "linger", 0, "how long the gateway may wait for more records for a batch (default: the gateway's)")
	fs.StringVar(&f.clientID, "client-id", "leat-produce", "name of this client in logs and metrics")
	return cmd
}

var (
	acksWords        = map[string]typev1.Acks{"0": typev1.Acks_ACKS_NONE, "1": typev1.Acks_ACKS_LEADER, "all": typev1.Acks_ACKS_ALL, "-1": typev1.Acks_ACKS_ALL}
	compressionWords = map[string]typev1.CompressionType{
		"none": typev1.CompressionType_COMPRESSION_TYPE_NONE, "gzip": typev1.CompressionType_COMPRESSION_TYPE_GZIP,
		"snappy": typev1.CompressionType_COMPRESSION_TYPE_SNAPPY, "lz4": typev1.CompressionType_COMPRESSION_TYPE_LZ4,
		"zstd": typev1.CompressionType_COMPRESSION_TYPE_ZSTD,
	}
	partitionerWords = map[string]gatewayv1.Partitioner{
		"murmur2": gatewayv1.Partitioner_PARTITIONER_MURMUR2, "sticky": gatewayv1.Partitioner_PARTITIONER_STICKY,
		"round-robin": gatewayv1.Partitioner_PARTITIONER_ROUND_ROBIN, "random": gatewayv1.Partitioner_PARTITIONER_RANDOM,
	}
)

// check finds wrong usage, and gives the opening message and the input.
func (f *produceFlags) check(cmd *cobra.Command, in io.Reader) (*gatewayv1.ProduceOpen, *produce.Input, error) {
	help := seeHelp(cmd)
	for _, err := range []error{
		oneOf(cmd, "--input", f.input, "lines", "json"),
		oneOf(cmd, "--acks", f.acks, "0", "1", "all", "-1"),
		oneOf(cmd, "--compression", f.compression, "none", "gzip", "snappy", "lz4", "zstd"),
		oneOf(cmd, "--partitioner", f.partitioner, "murmur2", "sticky", "round-robin", "random"),
	} {
		if err != nil {
			return nil, nil, err
		}
	}
	separator, regex := cmd.Flags().Changed("key-separator"), cmd.Flags().Changed("key-regex")
	switch {
	case separator && regex:
		return nil, nil, exit.Usage(help, "--key-separator and --key-regex exclude each other")
	case (separator || regex) && f.input == "json":
		return nil, nil, exit.Usage(help, "--input json has its keys in the objects; leave out --key-separator and --key-regex")
	case separator && f.separator == "":
		return nil, nil, exit.Usage(help, "--key-separator is empty")
	case f.acksOut != "" && acksWords[f.acks] == typev1.Acks_ACKS_NONE:
		return nil, nil, exit.Usage("Use --acks 1 or --acks all.", "with --acks 0 nothing is acknowledged, so --acks-out would have nothing to say")
	case f.rate < 0 || f.rate == 0 && cmd.Flags().Changed("rate"):
		return nil, nil, exit.Usage(help, "--rate is %v; it must be above 0", f.rate)
	case f.deliveryTimeout <= 0:
		return nil, nil, exit.Usage(help, "--delivery-timeout is %v; it must be above 0", f.deliveryTimeout)
	case f.partition < 0:
		return nil, nil, exit.Usage(help, "--partition is %d; partitions count from 0", f.partition)
	case cmd.Flags().Changed("partition") && cmd.Flags().Changed("partitioner"):
		return nil, nil, exit.Usage(help, "--partition and --partitioner exclude each other")
	}
	open := &gatewayv1.ProduceOpen{
		Handshake: rpc.LocalHandshake(), ClientId: f.clientID, Acks: acksWords[f.acks],
		Compression: compressionWords[f.compression], Partitioner: partitionerWords[f.partitioner],
	}
	if cmd.Flags().Changed("linger") {
		open.Linger = durationProto(f.linger)
	}
	options, err := f.options(cmd)
	if err != nil {
		return nil, nil, err
	}
	if f.input == "json" {
		return open, produce.NewJSON(in, options), nil
	}
	var keys *regexp.Regexp
	if regex {
		if keys, err = regexp.Compile(f.keyRegex); err != nil {
			return nil, nil, exit.Usage("See https://pkg.go.dev/regexp/syntax for the syntax.", "--key-regex: %w", err)
		}
	}
	return open, produce.NewLines(in, options, []byte(unescape(f.separator)), keys), nil
}

func (f *produceFlags) options(cmd *cobra.Command) (produce.Options, error) {
	var o produce.Options
	for _, h := range f.headers {
		k, v, ok := strings.Cut(h, "=")
		if !ok {
			return o, exit.Usage(seeHelp(cmd), "--header %q is not key=value", h)
		}
		o.Headers = append(o.Headers, &typev1.Header{Key: []byte(k), Value: []byte(v)})
	}
	if cmd.Flags().Changed("partition") {
		o.Partition = &f.partition
	}
	return o, nil
}

// unescape reads \t and \\ in a separator; anything else stands for itself.
func unescape(s string) string { return strings.NewReplacer(`\t`, "\t", `\\`, `\`).Replace(s) }

func (a *app) produce(cmd *cobra.Command, topic string, f produceFlags) error {
	open, input, err := f.check(cmd, a.In)
	if err != nil {
		return err
	}
	acks, err := a.openAcks(f.acksOut)
	if err != nil {
		return err
	}
	conn, err := a.dial()
	if err != nil {
		return errors.Join(err, acks.close())
	}
	defer conn.Close()
	progress, clear := a.produceProgress()
	told := &failures{a: a}
	summary, err := produce.Run(cmd.Context(), input, produce.Config{
		Client: gatewayv1.NewProducerServiceClient(conn), Topic: topic, Open: open, DeliveryTimeout: f.deliveryTimeout, Rate: f.rate,
		Result:  func(r produce.Result) { acks.write(r); told.add(r) },
		Settled: acks.flush, Note: func(format string, args ...any) { clear(); a.notef(format, args...) },
		Interrupt: a.interrupt, Progress: progress,
	})
	clear()
	err = errors.Join(err, acks.close())
	if err == nil && summary.Records == 0 && !summary.Interrupted {
		// No record has met the topic; that it is missing is worth telling all the same.
		err = a.checkTopic(cmd.Context(), gatewayv1.NewAdminServiceClient(conn), topic)
	}
	told.print()
	a.printProduced(summary, acksWords[f.acks])
	return produceOutcome(summary, err)
}

// checkTopic fails if there is no such topic. That nobody can tell is no failure.
func (a *app) checkTopic(ctx context.Context, admin gatewayv1.AdminServiceClient, topic string) error {
	ctx, cancel := a.callContext(ctx)
	defer cancel()
	_, err := call(ctx, admin.DescribeTopic, &gatewayv1.DescribeTopicRequest{Topic: topic})
	if rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC, typev1.ErrorReason_ERROR_REASON_INVALID_TOPIC_NAME) {
		return err
	}
	return nil
}

// produceOutcome chooses the exit code.
func produceOutcome(s produce.Summary, err error) error {
	switch {
	case s.Interrupted || errors.Is(err, context.Canceled):
		return exit.Silent(exit.Interrupted)
	case s.Unknown > 0:
		return silentUnless(exit.Unknown, err)
	case err != nil && s.Acked == 0:
		return err
	case err != nil:
		return exit.With(exit.Partly, err)
	case s.Failed > 0 && s.Acked > 0:
		return exit.Silent(exit.Partly)
	case s.Failed > 0:
		return exit.Silent(exit.Failed)
	}
	return nil
}

// silentUnless gives err the code; without err the code alone, since what
// happened has been told.
func silentUnless(code int, err error) error {
	if err == nil {
		return exit.Silent(code)
	}
	return exit.With(code, err)
}

func (a *app) printProduced(s produce.Summary, acks typev1.Acks) {
	rate := float64(s.Records) / max(s.Elapsed.Seconds(), 1e-9)
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s in %s, %s records/s", output.Records(s.Records), output.Bytes(s.Bytes), output.Duration(s.Elapsed), output.Count(int64(rate)))
	if acks == typev1.Acks_ACKS_NONE {
		fmt.Fprintf(&b, "; handed over %s", output.Count(s.Acked))
	} else {
		fmt.Fprintf(&b, "; acknowledged %s", output.Count(s.Acked))
	}
	fmt.Fprintf(&b, ", failed %s, unknown %s", output.Count(s.Failed), output.Count(s.Unknown))
	if s.MaybeDuplicated > 0 {
		fmt.Fprintf(&b, ", maybe duplicated %s", output.Count(s.MaybeDuplicated))
	}
	if s.Acked > 0 && acks != typev1.Acks_ACKS_NONE {
		fmt.Fprintf(&b, "; ack p50 %s, p99 %s", output.Duration(s.P50), output.Duration(s.P99))
	}
	fmt.Fprintln(a.Err, b.String())
}

// failures tells about the first records that failed with each reason.
type failures struct {
	a      *app
	counts map[string]int64
	order  []string
	first  map[string]*rpc.Error
}

func (f *failures) add(r produce.Result) {
	if r.Err == nil {
		return
	}
	if f.counts == nil {
		f.counts, f.first = map[string]int64{}, map[string]*rpc.Error{}
	}
	kind := "failed"
	if r.Unknown {
		kind = "of unknown outcome"
	}
	key := kind + ": " + rpc.ReasonName(r.Err.Reason)
	if f.counts[key] == 0 {
		f.order, f.first[key] = append(f.order, key), r.Err
	}
	f.counts[key]++
}

func (f *failures) print() {
	for _, key := range f.order {
		kind, _, _ := strings.Cut(key, ":")
		message, next, _ := describe(f.first[key])
		fmt.Fprintf(f.a.Err, "leat produce: %s %s: %s\n", output.Records(f.counts[key]), kind, message)
		if next != "" {
			fmt.Fprintf(f.a.Err, "  Next: %s\n", next)
		}
	}
}

// acksFile is where --acks-out goes; the zero value is nowhere.
type acksFile struct {
	file  io.Closer
	w     *bufio.Writer
	buf   []byte
	dirty bool
}

func (a *app) openAcks(path string) (*acksFile, error) {
	switch path {
	case "":
		return &acksFile{}, nil
	case "-":
		return &acksFile{w: bufio.NewWriter(a.Out)}, nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, exit.Failure("Give --acks-out a file that can be written.", "open --acks-out: %w", err)
	}
	return &acksFile{file: f, w: bufio.NewWriterSize(f, 64<<10)}, nil
}

func (f *acksFile) write(r produce.Result) {
	if f.w == nil {
		return
	}
	b := append(f.buf[:0], `{"number":`...)
	b = strconv.AppendInt(b, r.Number, 10)
	switch {
	case r.Err == nil:
		b = strconv.AppendInt(append(b, `,"partition":`...), int64(r.Partition), 10)
		b = strconv.AppendInt(append(b, `,"offset":`...), r.Offset, 10)
		if r.MaybeDuplicated {
			b = append(b, `,"maybe_duplicated":true`...)
		}
	case r.Unknown:
		b = append(append(append(b, `,"unknown":"`...), rpc.ReasonName(r.Err.Reason)...), '"')
	default:
		b = append(append(append(b, `,"error":"`...), rpc.ReasonName(r.Err.Reason)...), '"')
	}
	f.buf = append(b, "}\n"...)
	f.dirty = true
	_, _ = f.w.Write(f.buf) // a bufio.Writer keeps its error for Flush
}

func (f *acksFile) flush() error {
	if !f.dirty {
		return nil
	}
	f.dirty = false
	if err := f.w.Flush(); err != nil {
		return fmt.Errorf("write --acks-out: %w", err)
	}
	return nil
}

func (f *acksFile) close() error {
	err := f.flush()
	if f.file != nil {
		err = errors.Join(err, f.file.Close())
	}
	return err
}
