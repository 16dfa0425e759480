package registry

import (
	"context"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	storagev1 "github.com/leat-io/leat/gen/go/leat/storage/v1"
)

// Discovery returns a function that looks up the addresses of controllers: the
// static ones and those registered in etcd. If etcd does not answer, the static
// ones are returned; the function fails only if there is none either.
func Discovery(client *clientv3.Client, keys Keys, static []string) func(context.Context) ([]string, error) {
	return func(ctx context.Context) ([]string, error) {
		found := slices.Clone(static)
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		// Serializable: any member's view will do, also without a quorum.
		got, err := client.Get(ctx, keys.Registrations(controllerv1.ServiceKind_SERVICE_KIND_CONTROLLER),
			clientv3.WithPrefix(), clientv3.WithSerializable())
		if err != nil {
			if len(found) > 0 {
				return found, nil
			}
			return nil, fmt.Errorf("look up controllers in etcd: %w", err)
		}
		for _, kv := range got.Kvs {
			var record storagev1.RegistrationRecord
			if proto.Unmarshal(kv.Value, &record) == nil && CheckFormat(string(kv.Key), record.GetFormatVersion()) == nil {
				found = append(found, record.GetAddress())
			}
		}
		slices.Sort(found)
		return slices.Compact(found), nil
	}
}
