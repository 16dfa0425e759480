package session

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// maxClientID is the longest client id, in bytes.
const maxClientID = 255

// produceSettings checks an open message and fills in what it leaves out.
func produceSettings(o *gatewayv1.ProduceOpen, limits ProduceLimits) (ProduceSettings, error) {
	if err := rpc.CheckHandshake(o.GetHandshake()); err != nil {
		return ProduceSettings{}, err
	}
	s := ProduceSettings{
		ClientID: o.GetClientId(), Acks: o.GetAcks(), Compression: o.GetCompression(), Partitioner: o.GetPartitioner(),
		StopPartition: o.GetOnError() == gatewayv1.OnError_ON_ERROR_STOP_PARTITION,
	}
	var errs []error
	var err error
	if s.DeliveryTimeout, err = durationIn("delivery_timeout", o.GetDeliveryTimeout(), time.Millisecond, limits.MaxDeliveryTimeout, limits.DeliveryTimeout); err != nil {
		errs = append(errs, err)
	}
	s.DeliveryTimeout = StepUp(s.DeliveryTimeout, time.Second)
	if s.Linger, err = durationIn("linger", o.GetLinger(), 0, limits.MaxLinger, limits.Linger); err != nil {
		errs = append(errs, err)
	}
	if len(s.ClientID) > maxClientID {
		errs = append(errs, fmt.Errorf("client_id has %d bytes; use at most %d", len(s.ClientID), maxClientID))
	}
	errs = append(errs, CheckProduceEnums(s.Acks, s.Compression, s.Partitioner))
	if _, ok := gatewayv1.OnError_name[int32(o.GetOnError())]; !ok {
		errs = append(errs, fmt.Errorf("on_error %d is not one that this gateway knows", o.GetOnError()))
	}
	if err := errors.Join(errs...); err != nil {
		return ProduceSettings{}, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "open: %w", err)
	}
	s.fillIn()
	return s, nil
}

// fillIn replaces what is not stated by its default.
func (s *ProduceSettings) fillIn() {
	if s.Acks == typev1.Acks_ACKS_UNSPECIFIED {
		s.Acks = typev1.Acks_ACKS_ALL
	}
	if s.Compression == typev1.CompressionType_COMPRESSION_TYPE_UNSPECIFIED {
		s.Compression = typev1.CompressionType_COMPRESSION_TYPE_NONE
	}
	if s.Partitioner == gatewayv1.Partitioner_PARTITIONER_UNSPECIFIED {
		s.Partitioner = gatewayv1.Partitioner_PARTITIONER_MURMUR2
	}
}

// UnarySettings checks a unary produce and fills in what it leaves out.
func UnarySettings(r *gatewayv1.SendRequest, limits ProduceLimits) (ProduceSettings, error) {
	s := ProduceSettings{
		Acks: r.GetAcks(), Compression: r.GetCompression(), Partitioner: r.GetPartitioner(),
		DeliveryTimeout: limits.DeliveryTimeout, Linger: limits.Linger,
	}
	if err := CheckProduceEnums(s.Acks, s.Compression, s.Partitioner); err != nil {
		return s, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "send: %w", err)
	}
	if s.Acks == typev1.Acks_ACKS_NONE {
		return s, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST,
			"send: acks none has no answer to wait for; use acks leader or all, or a produce stream")
	}
	s.fillIn()
	return s, CheckSend(r.GetTopic(), r.GetRecords(), limits.MaxSendRecords)
}

// CheckProduceEnums refuses numbers that this release does not know.
func CheckProduceEnums(acks typev1.Acks, compression typev1.CompressionType, partitioner gatewayv1.Partitioner) error {
	var errs []error
	if _, ok := typev1.Acks_name[int32(acks)]; !ok {
		errs = append(errs, fmt.Errorf("acks %d is not one that this gateway knows", acks))
	}
	if _, ok := typev1.CompressionType_name[int32(compression)]; !ok {
		errs = append(errs, fmt.Errorf("compression %d is not one that this gateway knows", compression))
	}
	if _, ok := gatewayv1.Partitioner_name[int32(partitioner)]; !ok {
		errs = append(errs, fmt.Errorf("partitioner %d is not one that this gateway knows", partitioner))
	}
	return errors.Join(errs...)
}

// durationIn gives a duration of a message, or its default where it is absent.
func durationIn(name string, d *durationpb.Duration, least, most, absent time.Duration) (time.Duration, error) {
	if d == nil {
		return absent, nil
	}
	if err := d.CheckValid(); err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	if v := d.AsDuration(); v < least || v > most {
		return 0, fmt.Errorf("%s is %s; use a value from %s to %s", name, v, least, most)
	}
	return d.AsDuration(), nil
}
