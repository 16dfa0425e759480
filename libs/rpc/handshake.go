package rpc

import (
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/version"
)

// Features that a process may need of another one, by the names that travel in
// handshakes.
const (
	FeatureProduce       = "produce"
	FeatureFetch         = "fetch"
	FeatureShardFence    = "shard.fence"
	FeatureMetadataWatch = "metadata.watch"
	FeatureVouch         = "vouch"
	FeatureHealthStream  = "health.stream"
	FeatureGroupJoin     = "group.join"
)

// localFeatures are what this release understands, each in its range of versions.
var localFeatures = []struct {
	name     string
	min, max int32
}{
	{FeatureProduce, 1, 1},
	{FeatureFetch, 1, 1},
	{FeatureShardFence, 1, 1},
	{FeatureMetadataWatch, 1, 1},
	{FeatureVouch, 1, 1},
	{FeatureHealthStream, 1, 1},
	{FeatureGroupJoin, 1, 1},
}

// LocalHandshake tells what this release speaks.
func LocalHandshake() *typev1.Handshake {
	h := &typev1.Handshake{SoftwareVersion: version.String()}
	for _, f := range localFeatures {
		h.Features = append(h.Features, &typev1.Feature{Name: f.name, MinVersion: f.min, MaxVersion: f.max})
	}
	return h
}

// CheckHandshake reports UNSUPPORTED_FEATURE where the other side names a
// feature that this one knows too, in versions that do not overlap, or does not
// name one that is required. Features that only one side knows are not used and
// do no harm. A client without a handshake (a bare generated stub) names none.
func CheckHandshake(h *typev1.Handshake, required ...string) error {
	theirs := make(map[string]*typev1.Feature, len(h.GetFeatures()))
	for _, f := range h.GetFeatures() {
		theirs[f.GetName()] = f
	}
	for _, ours := range localFeatures {
		f, ok := theirs[ours.name]
		if ok && (f.MaxVersion < ours.min || f.MinVersion > ours.max) {
			return Errorf(typev1.ErrorReason_ERROR_REASON_UNSUPPORTED_FEATURE,
				"the other side (release %q) speaks %s in versions %d to %d, this one (release %q) in %d to %d: upgrade the older side",
				h.GetSoftwareVersion(), ours.name, f.MinVersion, f.MaxVersion, version.String(), ours.min, ours.max).With("feature", ours.name)
		}
	}
	for _, name := range required {
		if theirs[name] == nil {
			return Errorf(typev1.ErrorReason_ERROR_REASON_UNSUPPORTED_FEATURE,
				"the other side (release %q) does not speak %s, which is needed here: upgrade it", h.GetSoftwareVersion(), name).With("feature", name)
		}
	}
	return nil
}
