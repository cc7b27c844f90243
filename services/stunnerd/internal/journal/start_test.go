package journal

import (
	"bytes"
	"os"
	"syscall"
	"testing"
	"time"
)

// repeated is the content of a large file: begin, the repeated entry, end, and zeros up to a size.
type repeated struct {
	begin, entry, end []byte
	times             int
	size              int64
}

// repeatedFile reads the content of a file that has no blocks, because writing it takes longer than the test.
type repeatedFile struct {
	file
	repeated
}

func (r repeatedFile) ReadAt(b []byte, at int64) (n int, err error) {
	first := int64(len(r.begin))
	last := first + int64(r.times*len(r.entry))
	for n < len(b) {
		switch at := at + int64(n); {
		case at < first:
			n += copy(b[n:], r.begin[at:])
		case at < last:
			n += copy(b[n:], r.entry[(at-first)%int64(len(r.entry)):])
		case at < last+int64(len(r.end)):
			n += copy(b[n:], r.end[at-last:])
		default:
			zeros, err := r.file.ReadAt(b[n:], at)
			return n + zeros, err
		}
	}
	return n, nil
}

// A start takes less than a second of CPU time for any content of the file.
func TestStartIsFast(t *testing.T) {
	header := appendHeader(nil)
	longest := append(openEntry(nil, 99, 1), make([]byte, 1<<16-3)...) // of an unknown kind
	if !closeEntry(longest, 0) || closeEntry(append(longest, 0), 0) {
		t.Fatal("not the longest entry")
	}
	// Each byte may begin an entry, each with another length.
	almost := bytes.Repeat([]byte{byte(ended), byte(added), byte(nonces), byte(bound)}, len(longest)/4)
	almost[0], almost[1] = 0xff, 0xff
	most := maxSize/len(longest) - 1
	for name, c := range map[string]repeated{
		"1 GiB of zeros":                        {size: 1 << 30},
		"256 MiB of zeros":                      {size: maxSize},
		"256 MiB of damage":                     {begin: header, end: almost, size: maxSize},
		"256 MiB of entries, a damaged length":  {begin: header, entry: longest, times: most, end: almost},
		"256 MiB of entries, an incomplete one": {begin: header, entry: longest, times: most, end: longest[:1<<15]},
	} {
		t.Run(name, func(t *testing.T) {
			c.size = max(c.size, int64(len(c.begin)+c.times*len(c.entry)+len(c.end)))
			dir := t.TempDir()
			large(t, dir, "", c.size)
			h := func(name string, flags int) (file, error) {
				f, err := osFile(name, flags)
				if err == nil && flags == os.O_RDONLY {
					f = repeatedFile{f, c}
				}
				return f, err
			}
			before := cpuTime(t)
			j, _ := byHand(Options{Dir: dir}, h)
			took := cpuTime(t) - before
			t.Logf("%v", took)
			if took > time.Second {
				t.Errorf("the start takes %v", took)
			}
			end(t, j)
		})
	}
}

// cpuTime returns the CPU time of this process.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
