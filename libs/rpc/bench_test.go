package rpc

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc/mem"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
)

// BenchmarkProduceStream sends 64 KiB payloads and awaits every answer of a
// window, with the payload as buffers or as a field of the message.
func BenchmarkProduceStream(b *testing.B) {
	const size, window = 64 << 10, 8
	body := make([]byte, size)
	answer := &brokerv1.ProduceResponse{}
	for _, mode := range []string{"payload", "field"} {
		b.Run(mode, func(b *testing.B) {
			s, err := NewServer(ServerConfig{})
			if err != nil {
				b.Fatal(err)
			}
			brokerv1.RegisterLogServiceServer(s, &echoService{produce: func(st brokerv1.LogService_ProduceServer) error {
				for {
					if mode == "payload" {
						p, err := Recv(st, &brokerv1.ProduceRequest{})
						if err != nil {
							return err
						}
						p.Free()
					} else if _, err := st.Recv(); err != nil {
						return err
					}
					if err := st.Send(answer); err != nil {
						return err
					}
				}
			}})
			lis, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			go s.Serve(lis)
			defer s.Stop()
			conn, err := Dial(lis.Addr().String(), DialConfig{})
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			st, err := brokerv1.NewLogServiceClient(conn).Produce(context.Background())
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(size)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if mode == "payload" {
					err = Send(st, someRequest(0), PayloadFromBuffer(mem.SliceBuffer(body)))
				} else {
					m := someRequest(0)
					m.Records = body
					err = st.Send(m)
				}
				if err != nil {
					b.Fatal(err)
				}
				if i >= window {
					if _, err := st.Recv(); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
