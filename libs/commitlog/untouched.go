package commitlog

import (
	"strings"

	"github.com/leat-io/leat/libs/vfs"
)

// IsUntouched reports whether a folder that no Log has open holds no more than what Open
// begins a log with, as far as it came: an identity and an empty segment at offset 0.
// Nothing was ever appended there, nothing deleted, and it did not begin anew. An absent
// folder is untouched. Whatever Open does not begin with makes it touched.
func IsUntouched(fsys vfs.FS, dir string) (bool, error) {
	entries, err := fsys.ReadDir(dir)
	if isNotExist(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	first := segmentPath("", 0, "")
	for _, e := range entries {
		switch e.Name {
		case metadataFile, metadataFile + ".tmp":
			continue
		}
		suffix, ok := strings.CutPrefix(e.Name, first)
		if !ok || suffix != logSuffix && suffix != indexSuffix && suffix != timeIndexSuffix {
			return false, nil
		}
		info, err := fsys.Stat(joinPath(dir, e.Name))
		if err != nil || info.IsDir || info.Size > 0 {
			return false, err
		}
	}
	return true, nil
}
