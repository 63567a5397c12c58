package sys

import (
	"io"

	"golang.org/x/sys/unix"
)

// MaxFDs is how many descriptors one message carries at most (SCM_MAX_FD).
const MaxFDs = 253

// ReceivePacket receives one message into buf, and its descriptors. io.EOF
// means that the other side is gone; a message that does not fit is an error.
func ReceivePacket(sock int, buf []byte) (data []byte, fds []int, err error) {
	oob := make([]byte, unix.CmsgSpace(4*MaxFDs))
	for {
		n, oobn, flags, _, err := unix.Recvmsg(sock, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if oobn > 0 {
			msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
			if err != nil {
				return nil, nil, err
			}
			for _, m := range msgs {
				got, err := unix.ParseUnixRights(&m)
				if err != nil {
					return nil, nil, err
				}
				fds = append(fds, got...)
			}
		}
		if n == 0 && len(fds) == 0 {
			return nil, nil, io.EOF
		}
		if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
			for _, fd := range fds {
				unix.Close(fd)
			}
			return nil, nil, unix.EMSGSIZE
		}
		return buf[:n], fds, nil
	}
}
