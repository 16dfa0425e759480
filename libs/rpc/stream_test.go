package rpc

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
)

func sumOf(b []byte) int64 {
	sum := int64(0)
	for _, x := range b {
		sum += int64(x)
	}
	return sum
}

var payloadSizes = []int{0, 1, 700, 16 << 10, 65_537, 3 << 20}

// Payloads of all sizes go up and come back; all memory comes home.
func TestPayloadsBothWays(t *testing.T) {
	ctx := testContext(t)
	serverPool, clientPool := newCountingPool(), newCountingPool()
	svc := &echoService{
		produce: countProduce,
		fetch: func(st brokerv1.LogService_FetchServer) error {
			for i, n := range payloadSizes {
				b := &Buffer{data: serverPool.Get(n + 10), pool: serverPool}
				copy(b.Bytes(), someRequest(n).Records)
				m := &brokerv1.FetchResponse{Message: &brokerv1.FetchResponse_Batches{Batches: &brokerv1.FetchBatches{FetchId: int64(i)}}}
				if err := Send(st, m, b.Payload(n)); err != nil {
					return err
				}
			}
			return nil
		},
	}
	server, addr := startServer(t, ServerConfig{pool: serverPool}, svc)
	conn, err := Dial(addr, DialConfig{pool: clientPool})
	if err != nil {
		t.Fatal(err)
	}
	client := brokerv1.NewLogServiceClient(conn)

	up, err := client.Produce(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range payloadSizes {
		body := someRequest(n).Records
		if err := Send(up, someRequest(0), PayloadFromBuffer(split(clientPool, body, n/2)...)); err != nil {
			t.Fatal(err)
		}
		resp, err := up.Recv()
		if err != nil {
			t.Fatal(err)
		}
		r := resp.GetResults().GetResults()[0]
		if r.LeaderEpoch != int32(n) || r.BaseOffset != sumOf(body) || r.CorrelationId != 1<<40 {
			t.Errorf("%d bytes arrived as %v", n, r)
		}
	}
	if err := up.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := up.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ends with %v", err)
	}

	down, err := client.Fetch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range payloadSizes {
		var m brokerv1.FetchResponse
		p, err := Recv(down, &m)
		if err != nil {
			t.Fatal(err)
		}
		if m.GetBatches().GetFetchId() != int64(i) || !bytes.Equal(p.Bytes(), someRequest(n).Records) {
			t.Errorf("message %d came with %d bytes", i, p.Len())
		}
		p.Free()
	}
	if p, err := Recv(down, &brokerv1.FetchResponse{}); !errors.Is(err, io.EOF) || p != nil {
		t.Errorf("the stream ends with %v", err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	server.Stop()
	waitFor(t, "the buffers", func() bool { return serverPool.idle() && clientPool.idle() })
	serverPool.check(t)
	clientPool.check(t)
}

// A payload is taken over also where sending fails before the codec saw it.
func TestSendFailsAndFrees(t *testing.T) {
	ctx := testContext(t)
	pool := newCountingPool()
	_, addr := startServer(t, ServerConfig{}, &echoService{produce: countProduce})
	st, err := brokerv1.NewLogServiceClient(dial(t, addr, DialConfig{})).Produce(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.CloseSend(); err != nil {
		t.Fatal(err)
	}
	err = Send(st, someRequest(0), PayloadFromBuffer(split(pool, make([]byte, 5000))...))
	if err == nil {
		t.Error("sent after CloseSend")
	}
	pool.check(t)
}

// Programs with nothing but generated code and the stock codec, on either side.
func TestStockPeers(t *testing.T) {
	ctx := testContext(t)
	body := someRequest(50_000).Records

	_, addr := startServer(t, ServerConfig{}, &echoService{produce: countProduce})
	stock, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer stock.Close()
	st, err := brokerv1.NewLogServiceClient(stock).Produce(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Send(someRequest(50_000)); err != nil {
		t.Fatal(err)
	}
	if resp, err := st.Recv(); err != nil || resp.GetResults().GetResults()[0].BaseOffset != sumOf(body) {
		t.Errorf("our server answers a stock client %v, %v", resp, err)
	}

	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gs := grpc.NewServer()
	brokerv1.RegisterLogServiceServer(gs, &echoService{produce: func(st brokerv1.LogService_ProduceServer) error {
		m, err := st.Recv()
		if err != nil {
			return err
		}
		return st.Send(&brokerv1.ProduceResponse{Message: &brokerv1.ProduceResponse_Results{Results: &brokerv1.ProduceResults{
			Results: []*brokerv1.ProduceResult{{BaseOffset: sumOf(m.Records)}},
		}}})
	}})
	done := make(chan error, 1)
	go func() { done <- gs.Serve(lis) }()
	defer func() {
		gs.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	ours, err := brokerv1.NewLogServiceClient(dial(t, lis.Addr().String(), DialConfig{})).Produce(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := Send(ours, someRequest(0), NewPayload(body)); err != nil {
		t.Fatal(err)
	}
	if resp, err := ours.Recv(); err != nil || resp.GetResults().GetResults()[0].BaseOffset != sumOf(body) {
		t.Errorf("a stock server answers our client %v, %v", resp, err)
	}
}

// Malformed protobuf gives a typed error, however it is received.
func TestMalformedMessages(t *testing.T) {
	ctx := testContext(t)
	var logs logBuffer
	svc := &echoService{
		produce: countProduce,
		fetch: func(st brokerv1.LogService_FetchServer) error {
			_, err := st.Recv()
			return err
		},
	}
	_, addr := startServer(t, ServerConfig{Logger: logs.logger()}, svc)
	conn := dial(t, addr, DialConfig{})
	bad := append(protowire.AppendTag(nil, 1, protowire.BytesType), 100) // promises 100 bytes and ends
	raw := grpc.ForceCodecV2(rawCodec{})

	check := func(name string, err error) {
		t.Helper()
		if !IsReason(err, invalid) {
			t.Errorf("%s: %v", name, err)
		}
		st, _ := status.FromError(err)
		if len(st.Details()) == 0 {
			t.Errorf("%s: no details", name)
		}
	}
	var reply []byte
	check("unary", conn.Invoke(ctx, brokerv1.LogService_ListOffsets_FullMethodName, bad, &reply, raw))
	for name, method := range map[string]string{
		"Recv of this package": brokerv1.LogService_Produce_FullMethodName,
		"generated Recv":       brokerv1.LogService_Fetch_FullMethodName,
	} {
		st, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, raw)
		if err != nil {
			t.Fatal(err)
		}
		if err := st.SendMsg(bad); err != nil {
			t.Fatal(err)
		}
		check(name, st.RecvMsg(&reply))
	}
	if lines := logs.lines(t); len(lines) != 0 {
		t.Errorf("a client's mistake is logged: %v", lines)
	}
}

// case 41 groundwork: a message at the limit passes, one byte more is a typed
// error, on sending as on receiving.
func TestMessageLimit(t *testing.T) {
	ctx := testContext(t)
	const max = 1 << 20
	_, addr := startServer(t, ServerConfig{MaxMessageBytes: max}, &echoService{produce: countProduce})
	head := len(mustMarshal(t, someRequest(0))) + 4 // tag and length of the records
	send := func(maxClient, size int) error {
		st, err := brokerv1.NewLogServiceClient(dial(t, addr, DialConfig{MaxMessageBytes: maxClient})).Produce(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := Send(st, someRequest(0), PayloadFromBuffer(mem.SliceBuffer(make([]byte, size-head)))); err != nil {
			return err
		}
		_, err = st.Recv()
		return err
	}
	if err := send(0, max); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	for name, maxClient := range map[string]int{"the server's limit": 0, "the client's limit": max} {
		err := send(maxClient, max+1)
		if e := FromError(err); e == nil || e.Reason != limit || e.Metadata["limit"] == "" {
			t.Errorf("%s + 1: %v", name, err)
		}
	}
}
